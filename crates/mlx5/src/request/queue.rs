//! What commands that make queues have in common: where in the guest's memory a queue and its
//! doorbell record are, and the work queue `wq` within the contexts of several kinds of queues.

use super::part::Part;
use crate::layout::bits::Field;

/// Where a command names user memory: whether it does, which, and where in it.
pub(crate) struct UmemFields {
    pub(crate) valid: Field,
    pub(crate) number: Field,
    pub(crate) offset: Field,
}

impl UmemFields {
    /// Behind the context of `create_cq_in` and `create_xrc_srq_in`, `bits` from the start.
    pub(crate) const fn behind_context(bits: usize) -> UmemFields {
        UmemFields {
            offset: Field::new(bits, 64),
            number: Field::new(bits + 0x40, 32),
            valid: Field::new(bits + 0x60, 1),
        }
    }
}

/// An address in the guest: within an object of user memory, or by itself.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct GuestAddress {
    /// The object of user memory, if the command names one.
    pub(crate) umem: Option<u32>,
    /// The offset there, or the address.
    pub(crate) offset: u64,
}

impl Part<UmemFields> for GuestAddress {
    fn read(fields: UmemFields, input: &[u8]) -> GuestAddress {
        let umem = fields.valid.is_set(input).then(|| fields.number.get32(input));
        GuestAddress { umem, offset: fields.offset.get(input) }
    }
}

/// Where a command says where its queue is.
pub(crate) struct PlacementFields {
    pub(crate) entries: UmemFields,
    pub(crate) record: UmemFields,
    pub(crate) log_page_size: Field,
    pub(crate) page_offset: Field,
    /// The first byte of the list of pages.
    pub(crate) pages: usize,
}

/// Where a queue is in the guest's memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Placement {
    /// Its entries, unless they are in pages.
    pub(crate) entries: GuestAddress,
    /// Its doorbell record.
    pub(crate) record: GuestAddress,
    pub(crate) log_page_size: u32,
    /// Where it begins in the first page, in 64ths of a page.
    pub(crate) page_offset: u64,
    /// Addresses of its pages.
    pub(crate) pages: Vec<u64>,
}

impl Placement {
    /// The size of a page in bytes, as a logarithm.
    pub(crate) fn page_shift(&self) -> u32 {
        self.log_page_size + 12
    }

    /// The objects of user memory that the command names.
    pub(crate) fn user_memories(&self) -> impl Iterator<Item = u32> {
        [self.entries.umem, self.record.umem].into_iter().flatten()
    }
}

impl Part<PlacementFields> for Placement {
    fn read(fields: PlacementFields, input: &[u8]) -> Placement {
        Placement {
            entries: Part::read(fields.entries, input),
            record: Part::read(fields.record, input),
            log_page_size: Part::read(fields.log_page_size, input),
            page_offset: Part::read(fields.page_offset, input),
            pages: Part::read(fields.pages.., input),
        }
    }
}

/// Where a command has a work queue: the first bit of it, and the first byte of the list of pages.
#[derive(Clone, Copy)]
pub(crate) struct WqAt {
    pub(crate) bit: usize,
    pub(crate) pages: usize,
}

/// A work queue (PRM "Work Queue", `wq`).
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Wq {
    pub(crate) wq_type: u8,
    pub(crate) wq_signature: bool,
    /// "Limit water mark": requests below which an event is raised.
    pub(crate) lwm: u16,
    pub(crate) pd: u32,
    pub(crate) uar_page: u32,
    pub(crate) log_wq_stride: u32,
    pub(crate) log_wq_sz: u32,
    pub(crate) placement: Placement,
}

impl Part<WqAt> for Wq {
    fn read(WqAt { bit, pages }: WqAt, input: &[u8]) -> Wq {
        let field = |at, width| Field::new(at, width).at(bit);
        let placement = PlacementFields {
            entries: UmemFields {
                valid: field(0x121, 1),
                number: field(0x160, 32),
                offset: field(0x180, 64),
            },
            record: UmemFields {
                valid: field(0x120, 1),
                number: field(0x140, 32),
                offset: field(0x80, 64),
            },
            log_page_size: field(0x113, 5),
            page_offset: field(0x2b, 5),
            pages,
        };
        Wq {
            wq_type: Part::read(field(0x0, 4), input),
            wq_signature: Part::read(field(0x4, 1), input),
            lwm: Part::read(field(0x30, 16), input),
            pd: Part::read(field(0x48, 24), input),
            uar_page: Part::read(field(0x68, 24), input),
            log_wq_stride: Part::read(field(0x10c, 4), input),
            log_wq_sz: Part::read(field(0x11b, 5), input),
            placement: Part::read(placement, input),
        }
    }
}
