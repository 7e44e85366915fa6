//! The rule for keys of the Data Direct function: which fields of the command may be set. A
//! driver's key that breaks it is refused; it promises nothing of what lies under the key.

use crate::layout::mkc::{AccessMode, MkeyContext, NO_QP};

/// Why a key of the Data Direct function is not created (status BAD_PARAM of the command, EINVAL of
/// the driver).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MkeyRefused {
    /// The HCA has no `HCA_CAP.data_direct`.
    #[error("the HCA may not use Data Direct: HCA_CAP.data_direct is not set")]
    NotCapable,
    /// A Data Direct key has access mode PA.
    #[error("a Data Direct key needs access mode PA, not {0:?}")]
    AccessMode(AccessMode),
    /// A field is set that a Data Direct key reserves.
    #[error("a Data Direct key reserves {0}")]
    Reserved(&'static str),
}

impl MkeyContext {
    /// Whether a key of the Data Direct function may be created so. It supports a, rw, rr, lw, lr,
    /// relaxed_ordering_write, relaxed_ordering_read, mkey_7_0, length64, pd, start_addr and len;
    /// all else is reserved. (`qpn` has two ways to say nothing: 0, and [`NO_QP`] as Linux writes
    /// it.)
    ///
    /// # Errors
    /// [`MkeyRefused`], with the first reason.
    pub(crate) fn check_data_direct(&self, capable: bool) -> Result<(), MkeyRefused> {
        if !capable {
            return Err(MkeyRefused::NotCapable);
        }
        if self.access_mode != AccessMode::Pa {
            return Err(MkeyRefused::AccessMode(self.access_mode));
        }
        let set = self.reserved_for_data_direct().into_iter().find(|(_, is_set)| *is_set);
        set.map_or(Ok(()), |(field, _)| Err(MkeyRefused::Reserved(field)))
    }

    /// Fields that a Data Direct key reserves, and whether they are set.
    fn reserved_for_data_direct(&self) -> [(&'static str, bool); 24] {
        [
            ("pg_access", self.pg_access),
            ("mkey_umem_valid", self.mkey_umem_valid),
            ("mkey_umem_id", self.mkey_umem_id != 0),
            ("mkey_umem_offset", self.mkey_umem_offset != 0),
            ("translations_octword_actual_size", self.translations_octword_actual_size != 0),
            ("free", self.free),
            ("small_fence_on_rdma_read_response", self.small_fence_on_rdma_read_response),
            ("umr_en", self.umr_en),
            ("ma_translation_mode", self.ma_translation_mode != 0),
            ("qpn", self.qpn != 0 && self.qpn != NO_QP),
            ("bsf_en", self.bsf_en),
            ("sync_umr", self.sync_umr),
            ("expected_sigerr_count", self.expected_sigerr_count),
            ("en_rinval", self.en_rinval),
            ("bsf_octword_size", self.bsf_octword_size != 0),
            ("crossing_target_vhca_id", self.crossing_target_vhca_id != 0),
            ("translations_octword_size", self.translations_octword_size != 0),
            ("log_page_size", self.log_page_size != 0),
            ("crypto_en", self.crypto_en != 0),
            ("pcie_tph_en", self.pcie_tph_en),
            ("pcie_tph_ph", self.pcie_tph_ph != 0),
            ("pcie_tph_steering_tag_index", self.pcie_tph_steering_tag_index != 0),
            ("data_direct", !self.data_direct),
            ("a reserved bit", self.reserved),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::mkc::{
        ATOMIC, CONTEXT, DATA_DIRECT, LENGTH_64, LIST, LOCAL_READ, LOCAL_WRITE, PD, QPN,
        RELAXED_READ, RELAXED_WRITE, REMOTE_INVALIDATE, REMOTE_READ, REMOTE_WRITE, parse,
    };

    type Set = fn(&mut MkeyContext);

    /// The fields a Data Direct key has, each at its largest value.
    const ALLOWED: [(&str, Set); 12] = [
        ("a", |c| c.a = true),
        ("rw", |c| c.rw = true),
        ("rr", |c| c.rr = true),
        ("lw", |c| c.lw = true),
        ("lr", |c| c.lr = true),
        ("relaxed_ordering_write", |c| c.relaxed_ordering_write = true),
        ("relaxed_ordering_read", |c| c.relaxed_ordering_read = true),
        ("mkey_7_0", |c| c.mkey_7_0 = u8::MAX),
        ("length64", |c| c.length64 = true),
        ("pd", |c| c.pd = 0xff_ffff),
        ("start_addr", |c| c.start_addr = u64::MAX),
        ("len", |c| c.len = u64::MAX),
    ];

    /// All the others, each at its smallest value that says something.
    const RESERVED: [(&str, Set); 23] = [
        ("pg_access", |c| c.pg_access = true),
        ("mkey_umem_valid", |c| c.mkey_umem_valid = true),
        ("mkey_umem_id", |c| c.mkey_umem_id = 1),
        ("mkey_umem_offset", |c| c.mkey_umem_offset = 1),
        ("translations_octword_actual_size", |c| c.translations_octword_actual_size = 1),
        ("free", |c| c.free = true),
        ("small_fence_on_rdma_read_response", |c| c.small_fence_on_rdma_read_response = true),
        ("umr_en", |c| c.umr_en = true),
        ("ma_translation_mode", |c| c.ma_translation_mode = 1),
        ("qpn", |c| c.qpn = 1),
        ("bsf_en", |c| c.bsf_en = true),
        ("sync_umr", |c| c.sync_umr = true),
        ("expected_sigerr_count", |c| c.expected_sigerr_count = true),
        ("en_rinval", |c| c.en_rinval = true),
        ("bsf_octword_size", |c| c.bsf_octword_size = 1),
        ("crossing_target_vhca_id", |c| c.crossing_target_vhca_id = 1),
        ("translations_octword_size", |c| c.translations_octword_size = 1),
        ("log_page_size", |c| c.log_page_size = 1),
        ("crypto_en", |c| c.crypto_en = 1),
        ("pcie_tph_en", |c| c.pcie_tph_en = true),
        ("pcie_tph_ph", |c| c.pcie_tph_ph = 1),
        ("pcie_tph_steering_tag_index", |c| c.pcie_tph_steering_tag_index = 1),
        ("a reserved bit", |c| c.reserved = true),
    ];

    fn plain() -> MkeyContext {
        MkeyContext { data_direct: true, ..MkeyContext::default() }
    }

    #[test]
    fn every_allowed_field_is_accepted_alone_and_with_the_others() {
        let mut all = MkeyContext { qpn: NO_QP, ..plain() };
        for (field, set) in ALLOWED {
            let mut one = plain();
            set(&mut one);
            assert_ne!(one, plain(), "{field}");
            assert_eq!(one.check_data_direct(true), Ok(()), "{field}");
            set(&mut all);
        }
        assert_eq!(all.check_data_direct(true), Ok(()));
    }

    #[test]
    fn every_other_field_is_refused_by_its_name() {
        for (field, set) in RESERVED {
            let mut context = plain();
            ALLOWED.iter().for_each(|(_, set)| set(&mut context));
            set(&mut context);
            assert_eq!(context.check_data_direct(true), Err(MkeyRefused::Reserved(field)));
        }
        let fields = plain().reserved_for_data_direct();
        assert!(fields.iter().all(|(field, is_set)| {
            !is_set && (*field == "data_direct" || RESERVED.iter().any(|(name, _)| name == field))
        }));
    }

    #[test]
    fn access_mode_and_capability_come_first() {
        use AccessMode::{Crossing, Klms, Ksm, Memic, Mtt, SwIcm};
        for mode in [Mtt, Klms, Ksm, SwIcm, Memic, Crossing] {
            let context = MkeyContext { access_mode: mode, reserved: true, ..plain() };
            assert_eq!(context.check_data_direct(true), Err(MkeyRefused::AccessMode(mode)));
            assert_eq!(context.check_data_direct(false), Err(MkeyRefused::NotCapable));
        }
        let without_bit = MkeyContext::default();
        let refused = Err(MkeyRefused::Reserved("data_direct"));
        assert_eq!(without_bit.check_data_direct(true), refused);
    }

    #[test]
    fn the_keys_that_linux_makes_for_the_function_are_in_order() {
        let mut input = [0; LIST];
        DATA_DIRECT.set(&mut input, 1);
        let context = &mut input[CONTEXT];
        let ones = [ATOMIC, REMOTE_WRITE, REMOTE_READ, LOCAL_WRITE, LOCAL_READ];
        ones.iter().for_each(|field| field.set(context, 1));
        LENGTH_64.set(context, 1);
        PD.set(context, 7);
        QPN.set(context, 0xff_ffff);
        assert_eq!(parse(&input).unwrap().check_data_direct(true), Ok(()));
        RELAXED_READ.set(&mut input[CONTEXT], 1);
        RELAXED_WRITE.set(&mut input[CONTEXT], 1);
        assert_eq!(parse(&input).unwrap().check_data_direct(true), Ok(()));
        REMOTE_INVALIDATE.set(&mut input[CONTEXT], 1);
        assert!(parse(&input).unwrap().check_data_direct(true).is_err());
    }
}
