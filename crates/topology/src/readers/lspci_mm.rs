//! The forms of lspci for machines, rewritten into the usual one: `-mm`, one device a line in
//! quotes, and `-vmm`, one field a line.
//!
//! Neither shows bridges' buses, so what is below whom stays unknown.

/// The text in the usual form, if it is in one of these.
pub(crate) fn usual(text: &str) -> Option<String> {
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    if first.starts_with("Slot:") {
        return Some(text.split("\n\n").filter_map(record).collect());
    }
    let (_, rest) = first.split_once(' ')?;
    rest.starts_with('"').then(|| text.lines().filter_map(line).collect())
}

/// `00:01.0 "PCI bridge [0604]" "Intel Corporation [8086]" "Device [2030]" -r04 "" ""`
fn line(line: &str) -> Option<String> {
    let (address, rest) = line.split_once(' ')?;
    let mut quoted = rest.split('"').skip(1).step_by(2);
    Some(head(address, quoted.next()?, quoted.next()?, quoted.next()?))
}

fn record(record: &str) -> Option<String> {
    let field = |name: &str| {
        let mut lines = record.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim())
    };
    let mut text = head(field("Slot")?, field("Class")?, field("Vendor")?, field("Device")?);
    for (name, usual) in [
        ("Driver", "Kernel driver in use"),
        ("NUMANode", "NUMA node"),
        ("IOMMUGroup", "IOMMU group"),
    ] {
        if let Some(value) = field(name) {
            text += &format!("\t{usual}: {value}\n");
        }
    }
    Some(text)
}

/// `00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:2030]`
fn head(address: &str, class: &str, vendor: &str, device: &str) -> String {
    let number = |text: &str| {
        let (name, number) = text.strip_suffix(']')?.rsplit_once('[')?;
        let hex = number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
        hex.then(|| (name.trim().to_owned(), number.to_owned()))
    };
    match (number(vendor), number(device)) {
        (Some((vendor, v)), Some((device, d))) => {
            format!("{address} {class}: {vendor} {device} [{v}:{d}]\n")
        }
        // -n: numbers alone
        _ if vendor.len() == 4 && device.len() == 4 && u32::from_str_radix(class, 16).is_ok() => {
            format!("{address} {class}: {vendor}:{device}\n")
        }
        _ => format!("{address} {class}: {vendor} {device}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_become_the_usual_one() {
        let mm = "17:00.0 \"PCI bridge [0604]\" \"Intel Corporation [8086]\" \"Port A [2030]\" \
                  -r04 \"\" \"\"\n\
                  18:00.0 \"3D controller\" \"NVIDIA Corporation\" \"GV100GL [Tesla V100]\" -ra1 \
                  \"NVIDIA Corporation\" \"x\"\n\
                  19:00.0 \"0302\" \"10de\" \"1db1\" -ra1 \"10de\" \"1212\"\n";
        let expected = "17:00.0 PCI bridge [0604]: Intel Corporation Port A [8086:2030]\n\
                        18:00.0 3D controller: NVIDIA Corporation GV100GL [Tesla V100]\n\
                        19:00.0 0302: 10de:1db1\n";
        assert_eq!(usual(mm).as_deref(), Some(expected));
        let vmm = "Slot:\t18:00.0\nClass:\t3D controller [0302]\n\
                   Vendor:\tNVIDIA Corporation [10de]\n\
                   Device:\tGV100GL [1db1]\nRev:\ta1\nDriver:\tnvidia\nNUMANode:\t1\n\n";
        assert_eq!(
            usual(vmm).as_deref(),
            Some(
                "18:00.0 3D controller [0302]: NVIDIA Corporation GV100GL [10de:1db1]\n\
                 \tKernel driver in use: nvidia\n\tNUMA node: 1\n"
            )
        );
        assert_eq!(usual("00:00.0 Host bridge: x\n"), None);
    }
}
