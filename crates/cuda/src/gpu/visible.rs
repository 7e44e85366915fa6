//! `CUDA_VISIBLE_DEVICES`: which GPUs a program sees, and in which order (CUDA C++ Programming
//! Guide, environment variables).

use super::Gpu;

/// The GPUs that a value of the variable leaves; all without one. What is behind an entry that
/// names none, or one for the second time, is not seen.
pub fn visible(gpus: Vec<Gpu>, value: Option<&str>) -> Vec<Gpu> {
    let Some(value) = value else { return gpus };
    let mut chosen = Vec::new();
    for entry in value.split(',').map(str::trim) {
        let named = |gpu: &Gpu| entry.starts_with("GPU-") && gpu.uuid_text().starts_with(entry);
        let found = match entry.parse::<usize>() {
            Ok(number) => (number < gpus.len()).then_some(number),
            Err(_) => gpus.iter().position(named),
        };
        match found {
            Some(number) if !chosen.contains(&number) => chosen.push(number),
            Some(_) => return Vec::new(),
            None => break,
        }
    }
    let mut gpus: Vec<Option<Gpu>> = gpus.into_iter().map(Some).collect();
    chosen.into_iter().filter_map(|number| gpus[number].take()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Found;

    fn seen(value: Option<&str>) -> Vec<u8> {
        let gpu = |bus: u8| {
            let address = format!("0000:{bus:02x}:00.0").parse().unwrap();
            Gpu::new(Found::for_tests(address))
        };
        let left = visible([1, 2, 3].map(gpu).into(), value);
        left.iter().map(|gpu| gpu.address().bus).collect()
    }

    #[test]
    fn numbers_and_uuids_choose_and_a_wrong_one_ends_the_list() {
        assert_eq!(seen(None), [1, 2, 3]);
        assert_eq!(seen(Some("2,0")), [3, 1]);
        assert_eq!(seen(Some("1,7,0")), [2]);
        assert_eq!(seen(Some("")), [0; 0]);
        assert_eq!(seen(Some("-1")), [0; 0]);
        assert_eq!(seen(Some("1,1")), [0; 0]);
        let second = Gpu::new(Found::for_tests("0000:02:00.0".parse().unwrap())).uuid_text();
        assert_eq!(seen(Some(&second)), [2]);
        assert_eq!(seen(Some(&format!("{},0", &second[..12]))), [2, 1]);
    }
}
