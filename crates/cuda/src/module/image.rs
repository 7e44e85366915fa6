//! What is in an image: a cubin (an ELF file), PTX, or a container of such (fatbin). Only the names
//! of its kernels are of interest.

use super::elf;
use crate::sys::{Place, copy};
use crate::{Error, Res};
use std::collections::BTreeSet;

/// Kernels of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Image {
    /// Those of these names.
    Names(BTreeSet<String>),
    /// Names that cannot be read, for the image is compressed: whatever is asked for is there.
    Compressed,
}

/// First words of a fatbin's wrapper, and of a fatbin.
const WRAPPER: u32 = 0x4662_43b1;
const FATBIN: u32 = 0xba55_ed50;
/// What an entry of a fatbin is: PTX.
const PTX: u16 = 1;
/// Flag of an entry that is compressed.
const COMPRESSED: u64 = 0x2000;
/// Longest image that is read.
const MOST: u64 = 1 << 30;

impl Image {
    /// The image at an address of the program's.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_IMAGE` for what is no image; `CUDA_ERROR_INVALID_VALUE` for an address
    /// that nothing is at; `CUDA_ERROR_OUT_OF_MEMORY` where there is none to read it.
    pub fn at(addr: u64) -> Res<Image> {
        let head = head(addr)?;
        match (word(&head, 0), long(&head, 8)) {
            // What it is around is no wrapper again.
            (Some(WRAPPER), Some(inside)) => Image::within(inside, &self::head(inside)?),
            _ => Image::within(addr, &head),
        }
    }

    /// The image at an address that begins so.
    fn within(addr: u64, head: &[u8; 16]) -> Res<Image> {
        match word(head, 0) {
            Some(FATBIN) => {
                let header = u64::from(half(head, 6).unwrap_or(16));
                let len = long(head, 8).and_then(|len| len.checked_add(header));
                let len = len.filter(|len| *len <= MOST).ok_or(Error::INVALID_IMAGE)?;
                Ok(of_fatbin(read(addr, len)?.get(header as usize..).unwrap_or_default()))
            }
            _ if head.starts_with(b"\x7fELF") => {
                let len =
                    elf::length(&read(addr, elf::HEADER as u64)?).ok_or(Error::INVALID_IMAGE)?;
                let bytes = read(addr, len.min(MOST))?;
                Ok(Image::Names(elf::kernels(&bytes).ok_or(Error::INVALID_IMAGE)?))
            }
            _ => {
                let text = read_string(addr)?;
                if text.contains(".version") {
                    Ok(Image::of_ptx(&text))
                } else {
                    Err(Error::INVALID_IMAGE)
                }
            }
        }
    }

    /// The kernels of PTX: `.entry NAME`.
    pub fn of_ptx(text: &str) -> Image {
        let after = text.split(".entry").skip(1);
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_$%.".contains(c);
        let names = after.filter_map(|rest| {
            let rest = rest.trim_start();
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            (end > 0).then(|| rest[..end].to_owned())
        });
        Image::Names(names.collect())
    }

    /// Whether a kernel of this name is there, as far as can be known.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Image::Names(names) => names.contains(name),
            Image::Compressed => !name.is_empty(),
        }
    }

    /// The names that are known.
    pub fn names(&self) -> Vec<String> {
        match self {
            Image::Names(names) => names.iter().cloned().collect(),
            Image::Compressed => Vec::new(),
        }
    }
}

/// The kernels of all entries; compressed, if one is.
fn of_fatbin(mut entries: &[u8]) -> Image {
    let mut names = BTreeSet::new();
    while let (Some(kind), Some(header), Some(len), Some(flags)) =
        (half(entries, 0), word(entries, 4), long(entries, 8), long(entries, 40))
    {
        let start = header as usize;
        let end = usize::try_from(len).ok().and_then(|len| start.checked_add(len));
        let Some(bytes) = end.and_then(|end| entries.get(start..end)) else { break };
        if flags & COMPRESSED != 0 {
            return Image::Compressed;
        }
        if kind == PTX {
            names.extend(Image::of_ptx(&String::from_utf8_lossy(bytes)).names());
        } else {
            names.extend(elf::kernels(bytes).unwrap_or_default());
        }
        entries = &entries[start + bytes.len()..];
        if start + bytes.len() == 0 {
            break;
        }
    }
    Image::Names(names)
}

fn head(addr: u64) -> Res<[u8; 16]> {
    read(addr, 16)?.try_into().map_err(|_| Error::INVALID_VALUE)
}

fn read(addr: u64, len: u64) -> Res<Vec<u8>> {
    let len = usize::try_from(len).map_err(|_| Error::INVALID_IMAGE)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Error::OUT_OF_MEMORY)?;
    bytes.resize(len, 0);
    let len = len as u64;
    let to = Place::of_bytes(&mut bytes);
    copy(to, Place::of_program(addr, len)).map_err(|_| Error::INVALID_VALUE)?;
    Ok(bytes)
}

/// A string of C, page by page.
fn read_string(addr: u64) -> Res<String> {
    let page = crate::sys::page_size();
    let (mut text, mut at) = (Vec::new(), addr);
    while (text.len() as u64) < MOST {
        let part = read(at, page - at % page)?;
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&part[..end]);
            return String::from_utf8(text).map_err(|_| Error::INVALID_IMAGE);
        }
        at += part.len() as u64;
        text.try_reserve(part.len()).map_err(|_| Error::OUT_OF_MEMORY)?;
        text.extend(part);
    }
    Err(Error::INVALID_IMAGE)
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(super) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(image: &Image) -> Vec<String> {
        image.names()
    }

    #[test]
    fn ptx_is_read_where_it_lies() {
        let text = b".version 8.0\n.visible .entry _Z1av(\n)\n.entry b.c {}\n.func d()\0";
        assert_eq!(names(&Image::at(text.as_ptr() as u64).unwrap()), ["_Z1av", "b.c"]);
        assert_eq!(Image::at(c"nothing of the kind".as_ptr() as u64), Err(Error::INVALID_IMAGE));
        assert_eq!(Image::at(0), Err(Error::INVALID_VALUE));
    }

    /// A fatbin with one entry of PTX.
    fn fatbin(text: &[u8], flags: u64) -> Vec<u8> {
        let mut bytes = FATBIN.to_le_bytes().to_vec();
        bytes.extend([1, 0, 16, 0]);
        bytes.extend((64 + text.len() as u64).to_le_bytes());
        bytes.extend([1, 0, 1, 0]);
        bytes.extend(64u32.to_le_bytes());
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend([0; 24]);
        bytes.extend(flags.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend(text);
        bytes
    }

    #[test]
    fn containers_are_opened_and_compressed_ones_have_what_is_asked_for() {
        let plain = fatbin(b".entry one()", 0);
        let mut wrapper = WRAPPER.to_le_bytes().to_vec();
        wrapper.extend(1u32.to_le_bytes());
        wrapper.extend((plain.as_ptr() as u64).to_le_bytes());
        let image = Image::at(wrapper.as_ptr() as u64).unwrap();
        assert!(image.has("one") && !image.has("two"));
        let packed = fatbin(b"xx", COMPRESSED);
        let image = Image::at(packed.as_ptr() as u64).unwrap();
        assert!(image.has("one") && !image.has(""));
        let mut endless = fatbin(b"", 0);
        endless[20..24].fill(0);
        assert_eq!(Image::at(endless.as_ptr() as u64), Ok(Image::Names(BTreeSet::new())));
    }
}
