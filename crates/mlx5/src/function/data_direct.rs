//! The Data Direct function of a ConnectX-8: a PCI function of its own whose requests are those of
//! memory keys made for it. It has no register and no interrupt; its driver only makes it a bus
//! master and finds the adapter with the same VUID, which its vital product data say
//! (`drivers/infiniband/hw/mlx5/data_direct.c`).

use crate::layout::identity::{VENDOR, VUID_LEN};
use vfio_user::{Description, Function, PciIdentity};

/// PCI device.
pub const DEVICE: u16 = 0x2100;
/// DMA controller.
const CLASS_DMA: u32 = 0x08_0100;

/// The function as PCI shows it. Its memory is that of the host it is served with.
#[derive(Clone, Debug)]
pub struct DataDirect {
    vuid: String,
}

impl DataDirect {
    /// The function of the adapter of this VUID, of which 128 bytes count.
    pub fn new(vuid: &str) -> DataDirect {
        DataDirect { vuid: vuid.chars().take(VUID_LEN).collect() }
    }
}

impl Function for DataDirect {
    fn description(&self) -> Description {
        Description {
            identity: PciIdentity {
                vendor: VENDOR,
                device: DEVICE,
                subsystem_vendor: VENDOR,
                subsystem: 0x0001,
                revision: 0,
                class: CLASS_DMA,
            },
            vpd: Some(vpd(&self.vuid)),
            ..Description::default()
        }
    }

    fn bar_read(&self, _bar: u8, _offset: u64, _data: &mut [u8]) {}

    fn bar_write(&self, _bar: u8, _offset: u64, _data: &[u8]) {}

    // Nothing reaches memory through it until a driver makes it a bus master again: its host sees
    // to that.
    fn reset(&self) {}
}

/// Vital product data (PCI 2.2 appendix I): the name of the product, read-only keywords, the end.
fn vpd(vuid: &str) -> Vec<u8> {
    const NAME: u8 = 0x82;
    const READ_ONLY: u8 = 0x90;
    const END: u8 = 0x78;
    let large = |tag: u8, bytes: &[u8]| {
        let len = (bytes.len() as u16).to_le_bytes();
        [&[tag][..], &len, bytes].concat()
    };
    let keyword = |name: &[u8; 2], bytes: &[u8]| [&name[..], &[bytes.len() as u8], bytes].concat();
    let keywords = [keyword(b"PN", b"PEERDMA"), keyword(b"VU", vuid.as_bytes())].concat();
    let name = large(NAME, b"software ConnectX-8 Data Direct");
    // The checksum makes all bytes up to and with itself 0; it stands in the last keyword, of one
    // byte.
    let len = keywords.len() + 4;
    let mut head = [name, large(READ_ONLY, &vec![0; len])[..3].to_vec(), keywords].concat();
    head.extend([b'R', b'V', 1]);
    let sum = head.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    head.extend([sum.wrapping_neg(), END]);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_product_data_say_the_vuid() {
        let data = vpd("MT1234");
        let at = data.windows(3).position(|window| window == [b'V', b'U', 6]).unwrap() + 3;
        assert_eq!(&data[at..at + 6], b"MT1234");
        let end = data.len() - 1;
        assert_eq!(data[end], 0x78);
        assert_eq!(data[..end].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        let name = usize::from(u16::from_le_bytes([data[1], data[2]]));
        assert_eq!(data[3 + name], 0x90);
        let read_only = u16::from_le_bytes([data[4 + name], data[5 + name]]);
        assert_eq!(usize::from(read_only), end - 6 - name);
    }

    #[test]
    fn a_vuid_that_is_too_long_is_cut() {
        assert_eq!(DataDirect::new(&"x".repeat(200)).vuid.len(), VUID_LEN);
    }
}
