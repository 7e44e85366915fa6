//! Commands that bring the function up, ask what it can do, and reach its registers.

use super::part::request;
use crate::layout::bits::Field;
use crate::layout::context::Context;
use crate::layout::head::OP_MOD;

request! {
    TeardownHca {
        profile: u16 = Field::new(0x50, 16),
    }

    SetIssi {
        current_issi: u16 = Field::new(0x50, 16),
    }

    ManagePages {
        op_mod: u16 = OP_MOD,
        input_num_entries: u32 = Field::new(0x60, 32),
        pas: Vec<u64> = 0x10..,
    }

    QueryHcaCap {
        op_mod: u16 = OP_MOD,
    }

    SetHcaCap {
        op_mod: u16 = OP_MOD,
        /// The group of capabilities that `op_mod` names.
        capability: Context = 0x10..,
    }

    QueryVuid {
        query_vfs_vuid: bool = Field::new(0x60, 1),
        vhca_id: u64 = Field::new(0x70, 16),
    }

    AccessReg {
        op_mod: u16 = OP_MOD,
        register_id: u16 = Field::new(0x50, 16),
        register_data: Vec<u8> = 0x10..,
    }
}
