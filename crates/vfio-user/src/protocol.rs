//! Messages of vfio-user, version 0.1: bytes to values and back. Little-endian, as every machine
//! that speaks it over a UNIX socket. Any bytes may come in; nothing here panics or allocates by a
//! length that they name.

use rustix::io::Errno;

/// Bytes of a message's header.
pub const HEADER_LEN: usize = 16;
/// Most bytes that a read or write may carry, either way: what the protocol assumes of a side that
/// says nothing.
pub const MAX_DATA: usize = 1 << 20;
/// Most bytes of a message: the data, and the largest fixed part of a message that carries some.
pub const MAX_MESSAGE: usize = HEADER_LEN + 64 + MAX_DATA;
/// Descriptors that one message may carry: as many as QEMU has as its own limit.
pub const MAX_FDS: usize = 16;

/// Commands.
pub mod command {
    /// Versions and capabilities.
    pub const VERSION: u16 = 1;
    /// A range of memory appears.
    pub const DMA_MAP: u16 = 2;
    /// Ranges of memory go.
    pub const DMA_UNMAP: u16 = 3;
    /// How many regions and kinds of interrupt there are.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// What a region is.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Descriptors that take a region's accesses; not offered.
    pub const DEVICE_GET_REGION_IO_FDS: u16 = 6;
    /// What a kind of interrupt is.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Where interrupts go.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Read of a region.
    pub const REGION_READ: u16 = 9;
    /// Write of a region.
    pub const REGION_WRITE: u16 = 10;
    /// The device reads the client's memory.
    pub const DMA_READ: u16 = 11;
    /// The device writes the client's memory.
    pub const DMA_WRITE: u16 = 12;
    /// Function-level reset.
    pub const DEVICE_RESET: u16 = 13;
}

/// Header flag: a reply.
pub const REPLY: u32 = 1;
/// Header flags: what kind of message it is.
pub const TYPE: u32 = 0xf;
/// Header flag: the sender wants no reply.
pub const NO_REPLY: u32 = 0x10;
/// Header flag: a reply that the command failed; the header's last word is the errno.
pub const ERROR: u32 = 0x20;

/// `VFIO_DMA_MAP_FLAG_READ`.
pub const MAP_READ: u32 = 1;
/// `VFIO_DMA_MAP_FLAG_WRITE`.
pub const MAP_WRITE: u32 = 2;
/// `VFIO_DMA_UNMAP_FLAG_ALL`.
pub const UNMAP_ALL: u32 = 2;

/// `VFIO_IRQ_SET_DATA_NONE`.
pub const IRQ_DATA_NONE: u32 = 1;
/// `VFIO_IRQ_SET_DATA_EVENTFD`.
pub const IRQ_DATA_EVENTFD: u32 = 4;
/// `VFIO_IRQ_SET_ACTION_TRIGGER`.
pub const IRQ_ACTION_TRIGGER: u32 = 0x20;

/// The header of every message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Ties a reply to its command.
    pub id: u16,
    /// See [`command`].
    pub command: u16,
    /// Bytes of the message, the header's among them.
    pub size: u32,
    /// Flags.
    pub flags: u32,
    /// An errno where [`ERROR`] is set.
    pub error: u32,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// `INVAL` for a size that no message has. Where the next message begins nobody can tell then.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Header, Errno> {
        let mut fields = Fields(bytes);
        let header = Header {
            id: fields.u16()?,
            command: fields.u16()?,
            size: fields.u32()?,
            flags: fields.u32()?,
            error: fields.u32()?,
        };
        let size = header.size as usize;
        if (HEADER_LEN..=MAX_MESSAGE).contains(&size) { Ok(header) } else { Err(Errno::INVAL) }
    }

    /// The header as bytes.
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.error.to_le_bytes());
        bytes
    }

    /// Whether it is a reply.
    pub fn is_reply(&self) -> bool {
        self.flags & TYPE == REPLY
    }
}

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request<'a> {
    /// Version and capabilities of the client.
    Version {
        /// Major version: 0.
        major: u16,
        /// Minor version.
        minor: u16,
        /// JSON, without its final zero; empty where there is none.
        capabilities: &'a [u8],
    },
    /// Memory appears under DMA addresses; its descriptor, where there is one, comes with the
    /// message.
    DmaMap {
        /// [`MAP_READ`], [`MAP_WRITE`].
        flags: u32,
        /// Where in the descriptor's file it begins, in bytes.
        offset: u64,
        /// First DMA address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// Memory goes.
    DmaUnmap {
        /// [`UNMAP_ALL`], or none.
        flags: u32,
        /// First DMA address.
        address: u64,
        /// Bytes.
        size: u64,
    },
    /// Numbers of regions and interrupts.
    GetInfo,
    /// A region.
    GetRegionInfo {
        /// Bytes that the client takes in reply.
        room: u32,
        /// Region.
        index: u32,
    },
    /// A kind of interrupt.
    GetIrqInfo {
        /// Kind.
        index: u32,
    },
    /// Where interrupts go; event descriptors come with the message.
    SetIrqs {
        /// One of what the data is, one of what to do.
        flags: u32,
        /// Kind.
        index: u32,
        /// First vector.
        start: u32,
        /// Vectors.
        count: u32,
    },
    /// Bytes of a region, to be read.
    RegionRead {
        /// Offset in the region.
        offset: u64,
        /// Region.
        region: u32,
        /// Bytes.
        count: u32,
    },
    /// Bytes of a region, to be written.
    RegionWrite {
        /// Offset in the region.
        offset: u64,
        /// Region.
        region: u32,
        /// The bytes.
        data: &'a [u8],
    },
    /// Function-level reset.
    Reset,
}

impl<'a> Request<'a> {
    /// Reads what follows the header of `command`.
    ///
    /// # Errors
    /// `INVAL` for a body that is too short or says another length than it has, `NOTSUP` for a
    /// command that is none of these.
    pub fn parse(command: u16, body: &'a [u8]) -> Result<Request<'a>, Errno> {
        let mut fields = Fields(body);
        Ok(match command {
            command::VERSION => Request::Version {
                major: fields.u16()?,
                minor: fields.u16()?,
                capabilities: fields.0.strip_suffix(&[0]).unwrap_or(fields.0),
            },
            command::DMA_MAP => {
                fields.u32()?;
                Request::DmaMap {
                    flags: fields.u32()?,
                    offset: fields.u64()?,
                    address: fields.u64()?,
                    size: fields.u64()?,
                }
            }
            command::DMA_UNMAP => {
                fields.u32()?;
                Request::DmaUnmap {
                    flags: fields.u32()?,
                    address: fields.u64()?,
                    size: fields.u64()?,
                }
            }
            command::DEVICE_GET_INFO => Request::GetInfo,
            command::DEVICE_GET_REGION_INFO => {
                let room = fields.u32()?;
                fields.u32()?;
                Request::GetRegionInfo { room, index: fields.u32()? }
            }
            command::DEVICE_GET_IRQ_INFO => {
                fields.u64()?;
                Request::GetIrqInfo { index: fields.u32()? }
            }
            command::DEVICE_SET_IRQS => {
                fields.u32()?;
                Request::SetIrqs {
                    flags: fields.u32()?,
                    index: fields.u32()?,
                    start: fields.u32()?,
                    count: fields.u32()?,
                }
            }
            command::REGION_READ => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                if count as usize > MAX_DATA {
                    return Err(Errno::INVAL);
                }
                Request::RegionRead { offset, region, count }
            }
            command::REGION_WRITE => {
                let (offset, region, count) = (fields.u64()?, fields.u32()?, fields.u32()?);
                let data = fields.0.get(..count as usize).ok_or(Errno::INVAL)?;
                Request::RegionWrite { offset, region, data }
            }
            command::DEVICE_RESET => Request::Reset,
            _ => return Err(Errno::NOTSUP),
        })
    }
}

/// Little-endian fields, one after the other.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (field, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*field)
    }

    fn u16(&mut self) -> Result<u16, Errno> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }
}

/// A body under construction.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    /// Adds a field.
    pub fn u16(mut self, value: u16) -> Body {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Adds a field.
    pub fn u32(mut self, value: u32) -> Body {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Adds a field.
    pub fn u64(mut self, value: u64) -> Body {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Adds bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Body {
        self.0.extend_from_slice(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_says_what_it_was_made_of() {
        let header = Header { id: 7, command: 9, size: 40, flags: REPLY | ERROR, error: 22 };
        assert_eq!(Header::parse(&header.bytes()), Ok(header));
        assert!(header.is_reply());
    }

    #[test]
    fn sizes_that_no_message_has_are_refused() {
        for size in [0, 15, MAX_MESSAGE as u32 + 1, u32::MAX] {
            let header = Header { id: 1, command: 1, size, flags: 0, error: 0 };
            assert_eq!(Header::parse(&header.bytes()), Err(Errno::INVAL), "{size}");
        }
    }

    #[test]
    fn reads_requests_as_qemu_sends_them() {
        let map = Body::default().u32(32).u32(3).u64(0x1000).u64(1 << 32).u64(1 << 20);
        assert_eq!(
            Request::parse(command::DMA_MAP, &map.0),
            Ok(Request::DmaMap { flags: 3, offset: 0x1000, address: 1 << 32, size: 1 << 20 })
        );
        let version = Body::default().u16(0).u16(1).bytes(b"{}\0");
        assert_eq!(
            Request::parse(command::VERSION, &version.0),
            Ok(Request::Version { major: 0, minor: 1, capabilities: b"{}" })
        );
        let write = Body::default().u64(8).u32(7).u32(2).bytes(b"ab");
        assert_eq!(
            Request::parse(command::REGION_WRITE, &write.0),
            Ok(Request::RegionWrite { offset: 8, region: 7, data: b"ab" })
        );
    }

    #[test]
    fn a_write_that_carries_less_than_it_says_is_refused() {
        let write = Body::default().u64(8).u32(7).u32(u32::MAX).bytes(b"ab");
        assert_eq!(Request::parse(command::REGION_WRITE, &write.0), Err(Errno::INVAL));
        let read = Body::default().u64(8).u32(7).u32(u32::MAX);
        assert_eq!(Request::parse(command::REGION_READ, &read.0), Err(Errno::INVAL));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(command in 0u16..20, body: Vec<u8>) {
            match Request::parse(command, &body) {
                Ok(_) => prop_assert!((1..=13).contains(&command)),
                Err(error) => prop_assert!([Errno::INVAL, Errno::NOTSUP].contains(&error)),
            }
        }
    }
}
