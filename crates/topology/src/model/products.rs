//! The list of PCI ids: from ids to names, and from the names that lspci prints back to ids.

use pcie::Function;

/// What a function is called: by its id, else as the source calls it.
pub(crate) fn name(function: &Function) -> String {
    let listed =
        function.id.and_then(|(vendor, device)| pci_ids::Device::from_vid_pid(vendor, device));
    match (listed, &function.product) {
        (Some(device), _) => device.name().to_owned(),
        (None, Some(product)) => product.clone(),
        (None, None) => String::new(),
    }
}

/// The vendor of a function: by its id, else by the name with which the source's text begins.
pub(crate) fn vendor(function: &Function) -> Option<u16> {
    function.id.map(|id| id.0).or_else(|| Some(vendor_named(function.product.as_deref()?)?.id()))
}

/// The vendor whose name a text begins with.
fn vendor_named(text: &str) -> Option<&'static pci_ids::Vendor> {
    let named = |vendor: &&pci_ids::Vendor| {
        text.strip_prefix(vendor.name())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    pci_ids::Vendors::iter().filter(named).max_by_key(|vendor| vendor.name().len())
}

/// The id of `NVIDIA Corporation GH100 [H100 SXM5 80GB]` or `NVIDIA Corporation Device 2901`, if
/// only one device has the name.
pub(crate) fn id_of(text: &str) -> Option<(u16, u16)> {
    let vendor = vendor_named(text)?;
    let rest = text.get(vendor.name().len()..)?.trim();
    if let Some(number) = rest.strip_prefix("Device ").filter(|number| number.len() == 4) {
        return Some((vendor.id(), u16::from_str_radix(number, 16).ok()?));
    }
    let mut named = vendor.devices().filter(|device| device.name() == rest);
    match (named.next(), named.next()) {
        (Some(only), None) => Some((vendor.id(), only.id())),
        _ => None,
    }
}

/// The class code of a name such as `VGA compatible controller`, without its programming interface.
pub(crate) fn class_of(name: &str) -> Option<u32> {
    let subclasses = pci_ids::Classes::iter().flat_map(pci_ids::Class::subclasses);
    let mut named = subclasses.filter(|sub| sub.name().eq_ignore_ascii_case(name));
    let sub = named.next()?;
    Some(u32::from(sub.class().id()) << 16 | u32::from(sub.id()) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_lspci_prints_them() {
        assert_eq!(id_of("NVIDIA Corporation GH100 [H100 SXM5 80GB]"), Some((0x10de, 0x2330)));
        assert_eq!(id_of("NVIDIA Corporation Device 2f01"), Some((0x10de, 0x2f01)));
        assert_eq!(id_of("NVIDIA Corporation GH100"), None, "several have it");
        assert_eq!(id_of("Nobody Device 2901"), None);
        assert_eq!(class_of("VGA compatible controller"), Some(0x030000));
        assert_eq!(class_of("InfiniBand controller"), Some(0x020700));
        assert_eq!(class_of("Non-Volatile memory controller"), Some(0x010800));
        assert_eq!(class_of("Processing accelerators"), Some(0x120000));
        assert_eq!(class_of("PCI bridge"), Some(0x060400));
        assert_eq!(class_of("Something else"), None);
    }
}
