//! What a command to create an MKEY asks for (`create_mkey_in` and its `mkc` in `include/linux/mlx5/mlx5_ifc.h`), as values
//! that any front end fills in, and the rule for keys of the Data Direct function: which fields may be set.

/// How an MKEY finds the memory (`MLX5_MKC_ACCESS_MODE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum AccessMode {
    /// Addresses are DMA addresses.
    #[default]
    Pa = 0,
    /// Pages of one size.
    Mtt = 1,
    /// Parts of other keys, each of its own length.
    Klms = 2,
    /// Parts of other keys, all of one length.
    Ksm = 3,
    /// Memory of the device for steering.
    SwIcm = 4,
    /// Memory of the device.
    Memic = 5,
    /// Another HCA's key.
    Crossing = 6,
}

/// A key is bound to no queue pair: what drivers write to `qpn`.
pub const NO_QP: u32 = 0xff_ffff;

/// A command to create an MKEY. The fields have the names and widths of the command; what is left out of the default is 0.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[allow(missing_docs, reason = "the names are those of mlx5_ifc.h, which says what each field is")]
pub struct MkeyContext {
    /// The key is one of the Data Direct function: a bit of the command, not of the context in it.
    pub data_direct: bool,
    pub access_mode: AccessMode,
    pub a: bool,
    pub rw: bool,
    pub rr: bool,
    pub lw: bool,
    pub lr: bool,
    pub relaxed_ordering_write: bool,
    pub relaxed_ordering_read: bool,
    pub mkey_7_0: u8,
    pub length64: bool,
    /// 24 bits.
    pub pd: u32,
    pub start_addr: u64,
    /// In bytes; not looked at with `length64`.
    pub len: u64,
    pub pg_access: bool,
    pub mkey_umem_valid: bool,
    pub mkey_umem_id: u32,
    pub mkey_umem_offset: u64,
    pub translations_octword_actual_size: u32,
    pub free: bool,
    pub small_fence_on_rdma_read_response: bool,
    pub umr_en: bool,
    pub ma_translation_mode: u8,
    /// 24 bits.
    pub qpn: u32,
    pub bsf_en: bool,
    pub sync_umr: bool,
    pub expected_sigerr_count: bool,
    pub en_rinval: bool,
    pub bsf_octword_size: u32,
    pub crossing_target_vhca_id: u16,
    pub translations_octword_size: u32,
    pub log_page_size: u8,
    pub crypto_en: u8,
    pub pcie_tph_en: bool,
    pub pcie_tph_ph: u8,
    pub pcie_tph_steering_tag_index: u8,
    /// Any bit that the layout reserves.
    pub reserved: bool,
}

/// Why a key of the Data Direct function is not created (status BAD_PARAM of the command, EINVAL of the driver).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MkeyRefused {
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
    /// Whether a key of the Data Direct function may be created so. It supports a, rw, rr, lw, lr, relaxed_ordering_write,
    /// relaxed_ordering_read, mkey_7_0, length64, pd, start_addr and len; all else is reserved. (`qpn` has two ways to say
    /// nothing: 0, and [`NO_QP`] as Linux writes it.)
    ///
    /// # Errors
    /// [`MkeyRefused`], with the first reason.
    pub fn check_data_direct(&self, capable: bool) -> Result<(), MkeyRefused> {
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
}
