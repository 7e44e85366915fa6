//! Commands about the contexts of users, and what drivers make for them (`general_obj_in_cmd_hdr`).

use super::part::request;
use crate::layout::bits::Field;

request! {
    CreateUctx {
        /// What the user may besides.
        cap: u64 = Field::new(0x80, 32),
    }

    DestroyUctx {
        uid: u16 = Field::new(0x50, 16),
    }

    /// `create_general_object_in` and `destroy_general_object_in`.
    GeneralObject {
        obj_type: u64 = Field::new(0x30, 16),
        obj_id: u32 = Field::new(0x40, 32),
        log_obj_range: u64 = Field::new(0x63, 5),
    }
}
