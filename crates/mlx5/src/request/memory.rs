//! Commands about memory: keys (`mkc`), protection signature values, user memory, and the memory of
//! the device.

use super::part::{Parse, Part, request};
use crate::layout::bits::Field;
use crate::layout::head::{OBJECT, OP_MOD, Status};
use crate::layout::mkc::{self, AccessMode, CONTEXT_LEN, MkeyContext};

/// `create_mkey_in`.
#[derive(Clone, Debug)]
pub(crate) struct CreateMkey {
    /// The whole command as the HCA names its fields, or why it asks for no key.
    pub(crate) attributes: Result<MkeyContext, Status>,
    pub(crate) context: Option<[u8; CONTEXT_LEN]>,
    pub(crate) pd: u32,
    pub(crate) data_direct: bool,
    /// The entries of the list say whether pages are there.
    pub(crate) pg_access: bool,
    /// Units of 16 bytes that the list has.
    pub(crate) translations_octword_actual_size: u64,
    /// The list: of pages or of keys, as the access mode says.
    pub(crate) klm_pas_mtt: Vec<u8>,
}

impl CreateMkey {
    /// Whether a program may ask for such a key: one over parts of keys of its own. Addresses of
    /// the machine, keys of other domains and the Data Direct function are the driver's.
    pub(crate) fn is_for_users(&self) -> bool {
        let mode = self.attributes.as_ref().map(|attributes| attributes.access_mode);
        matches!(mode, Ok(AccessMode::Klms | AccessMode::Ksm)) && !self.data_direct
    }
}

impl Parse for CreateMkey {
    fn parse(input: &[u8]) -> CreateMkey {
        CreateMkey {
            attributes: mkc::parse(input),
            context: Part::read(mkc::CONTEXT.start.., input),
            pd: Part::read(mkc::PD.at(mkc::CONTEXT.start * 8), input),
            data_direct: Part::read(mkc::DATA_DIRECT, input),
            pg_access: Part::read(mkc::PAGING, input),
            translations_octword_actual_size: Part::read(mkc::OCTOWORDS, input),
            klm_pas_mtt: Part::read(mkc::LIST.., input),
        }
    }
}

request! {
    CreatePsv {
        num_psv: u8 = Field::new(0x40, 4),
        pd: u32 = OBJECT,
    }

    CreateUmem {
        log_page_size: u32 = Field::new(0x11b, 5),
        page_offset: u64 = Field::new(0x120, 32),
        num_of_mtt: u64 = Field::new(0x140, 64),
        mtt: Vec<u64> = 0x180 / 8..,
    }

    /// Addresses count from the beginning of BAR 0.
    AllocMemic {
        log_memic_addr_alignment: u64 = Field::new(0x78, 8),
        range_start_addr: u64 = Field::new(0x80, 64),
        range_size: u64 = Field::new(0xc0, 32),
        memic_size: u64 = Field::new(0xe0, 32),
    }

    DeallocMemic {
        memic_start_addr: u64 = Field::new(0x80, 64),
    }

    ModifyMemic {
        op_mod: u16 = OP_MOD,
        memic_operation_type: u8 = Field::new(0x78, 8),
        memic_start_addr: u64 = Field::new(0x80, 64),
    }
}
