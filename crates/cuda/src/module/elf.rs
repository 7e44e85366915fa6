//! Kernels of a cubin: its sections `.text.NAME` (64-bit ELF, little-endian).

use super::image::{half, long, word};
use std::collections::BTreeSet;

/// Length of the file's header in bytes.
pub const HEADER: usize = 64;

/// Bytes up to the end of the last section, by the header's word: the section table is behind them
/// or before.
pub fn length(header: &[u8]) -> Option<u64> {
    let table = long(header, 0x28)?;
    let (size, count) = (u64::from(half(header, 0x3a)?), u64::from(half(header, 0x3c)?));
    table.checked_add(size.checked_mul(count)?)
}

/// Names of kernels; `None` for what is no such file. Names beyond the bytes given are left out.
pub fn kernels(bytes: &[u8]) -> Option<BTreeSet<String>> {
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = usize::try_from(long(bytes, 0x28)?).ok()?;
    let (size, count) = (usize::from(half(bytes, 0x3a)?), usize::from(half(bytes, 0x3c)?));
    let section = |number: usize| {
        let at = table.checked_add(number.checked_mul(size)?)?;
        bytes.get(at..at.checked_add(size.max(64))?)
    };
    let names = section(usize::from(half(bytes, 0x3e)?))?;
    let names = usize::try_from(long(names, 0x18)?).ok()?;
    let name = |section: &[u8]| {
        let start = names.checked_add(word(section, 0)? as usize)?;
        let text = bytes.get(start..)?.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(text).ok()?.strip_prefix(".text.").map(str::to_owned)
    };
    Some((0..count).filter_map(|number| name(section(number)?)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with two sections: the names, and the code of a kernel.
    pub(super) fn file() -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(HEADER, 0);
        let strings = b"\0.shstrtab\0.text.add\0";
        bytes.extend(strings);
        let table = bytes.len() as u64;
        bytes[0x28..0x30].copy_from_slice(&table.to_le_bytes());
        bytes[0x3a] = 64;
        bytes[0x3c] = 2;
        for (name, offset) in [(1u32, HEADER as u64), (11, HEADER as u64)] {
            let start = bytes.len();
            bytes.resize(start + 64, 0);
            bytes[start..start + 4].copy_from_slice(&name.to_le_bytes());
            bytes[start + 0x18..start + 0x20].copy_from_slice(&offset.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn kernels_are_found_and_damaged_files_are_harmless() {
        let file = file();
        assert_eq!(length(&file), Some(file.len() as u64));
        assert_eq!(kernels(&file).unwrap().into_iter().collect::<Vec<_>>(), ["add"]);
        for cut in 0..file.len() {
            let _ = kernels(&file[..cut]);
        }
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] = 0xff;
            let _ = (kernels(&damaged), length(&damaged));
        }
    }
}
