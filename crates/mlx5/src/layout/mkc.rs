//! The context of a memory key and the command that makes one (PRM "Memory Key Context";
//! `create_mkey_in` and `mkc` in `mlx5_ifc.h`): the fields, and the command as a value.

use crate::layout::bits::Field;
use crate::layout::head::Status;

/// Bytes of a context.
pub(crate) const CONTEXT_LEN: usize = 64;
/// Where the command has the context, and where the translation follows.
pub(crate) const CONTEXT: std::ops::Range<usize> = 16..16 + CONTEXT_LEN;
pub(crate) const LIST: usize = 0x110;
/// The opcode and what else every command begins with, in bytes.
const HEAD: usize = 8;

pub(crate) const DATA_DIRECT: Field = Field::new(0x62, 1);

/// The entries of the list say whether pages are there.
pub(crate) const PAGING: Field = Field::new(0x60, 1);
const UMEM_VALID: Field = Field::new(0x61, 1);
/// Units of 16 bytes that follow in the command.
pub(crate) const OCTOWORDS: Field = Field::new(0x300, 32);
const UMEM_ID: Field = Field::new(0x320, 32);
const UMEM_OFFSET: Field = Field::new(0x340, 64);

pub(crate) const FREE: Field = Field::new(0x1, 1);
const ACCESS_MODE_HIGH: Field = Field::new(0x3, 3);
pub(crate) const RELAXED_WRITE: Field = Field::new(0xd, 1);
pub(crate) const SMALL_FENCE: Field = Field::new(0xf, 1);
pub(crate) const UMR_ENABLED: Field = Field::new(0x10, 1);
pub(crate) const ATOMIC: Field = Field::new(0x11, 1);
pub(crate) const REMOTE_WRITE: Field = Field::new(0x12, 1);
pub(crate) const REMOTE_READ: Field = Field::new(0x13, 1);
pub(crate) const LOCAL_WRITE: Field = Field::new(0x14, 1);
pub(crate) const LOCAL_READ: Field = Field::new(0x15, 1);
const ACCESS_MODE_LOW: Field = Field::new(0x16, 2);
pub(crate) const MA_TRANSLATION: Field = Field::new(0x1a, 2);
pub(crate) const QPN: Field = Field::new(0x20, 24);
pub(crate) const TAG: Field = Field::new(0x38, 8);
pub(crate) const LENGTH_64: Field = Field::new(0x60, 1);
/// It has block signatures, or may have them.
pub(crate) const SIGNED: Field = Field::new(0x61, 1);
pub(crate) const SYNC_UMR: Field = Field::new(0x62, 1);
/// Changes with every failed check that a driver has seen.
pub(crate) const FAILED_CHECKS: Field = Field::new(0x65, 1);
pub(crate) const REMOTE_INVALIDATE: Field = Field::new(0x67, 1);
pub(crate) const PD: Field = Field::new(0x68, 24);
pub(crate) const START: Field = Field::new(0x80, 64);
pub(crate) const LEN: Field = Field::new(0xc0, 64);
/// Units of 16 bytes that the description of its signatures may have.
pub(crate) const SIGNATURE_OCTOWORDS: Field = Field::new(0x100, 32);
/// The device of a crossing key's target.
pub(crate) const TARGET_DEVICE: Field = Field::new(0x180, 16);
/// Units of 16 bytes that the key's list may have; of a crossing key its target.
pub(crate) const CAPACITY: Field = Field::new(0x1a0, 32);
pub(crate) const RELAXED_READ: Field = Field::new(0x1d9, 1);
pub(crate) const LOG_PAGE_SIZE: Field = Field::new(0x1da, 6);
pub(crate) const LOG_PAGE_SIZE_HIGH: Field = Field::new(0x1da, 1);
pub(crate) const LOG_PAGE_SIZE_LOW: Field = Field::new(0x1db, 5);
pub(crate) const CRYPTO_EN: Field = Field::new(0x1e3, 2);
pub(crate) const TPH_EN: Field = Field::new(0x1e5, 1);
pub(crate) const TPH_HINT: Field = Field::new(0x1e6, 2);
pub(crate) const TPH_TAG: Field = Field::new(0x1e8, 8);

/// All fields of the command besides the context, and of the context, to find what is set besides.
const OF_COMMAND: [Field; 6] = [DATA_DIRECT, PAGING, UMEM_VALID, OCTOWORDS, UMEM_ID, UMEM_OFFSET];
const OF_CONTEXT: [Field; 31] = [
    FREE,
    ACCESS_MODE_HIGH,
    RELAXED_WRITE,
    SMALL_FENCE,
    UMR_ENABLED,
    ATOMIC,
    REMOTE_WRITE,
    REMOTE_READ,
    LOCAL_WRITE,
    LOCAL_READ,
    ACCESS_MODE_LOW,
    MA_TRANSLATION,
    QPN,
    TAG,
    LENGTH_64,
    SIGNED,
    SYNC_UMR,
    FAILED_CHECKS,
    REMOTE_INVALIDATE,
    PD,
    START,
    LEN,
    SIGNATURE_OCTOWORDS,
    TARGET_DEVICE,
    CAPACITY,
    RELAXED_READ,
    LOG_PAGE_SIZE,
    CRYPTO_EN,
    TPH_EN,
    TPH_HINT,
    TPH_TAG,
];

/// How an MKEY finds the memory (`MLX5_MKC_ACCESS_MODE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum AccessMode {
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
    /// A key of this HCA or of another, in any domain.
    Crossing = 6,
}

impl AccessMode {
    const ALL: [AccessMode; 7] = {
        use AccessMode::{Crossing, Klms, Ksm, Memic, Mtt, Pa, SwIcm};
        [Pa, Mtt, Klms, Ksm, SwIcm, Memic, Crossing]
    };

    /// The one that a context names, if there is such a one.
    pub(crate) fn of(context: &[u8]) -> Option<AccessMode> {
        let number = ACCESS_MODE_HIGH.get(context) << 2 | ACCESS_MODE_LOW.get(context);
        AccessMode::ALL.into_iter().find(|mode| *mode as u64 == number)
    }
}

/// A key is bound to no queue pair: what drivers write to `qpn`.
pub(crate) const NO_QP: u32 = 0xff_ffff;

/// A command to create an MKEY, as values. The fields have the names and widths of the command, and
/// `mlx5_ifc.h` says what each is; what is left out of the default is 0.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct MkeyContext {
    /// The key is one of the Data Direct function: a bit of the command, not of the context in it.
    pub(crate) data_direct: bool,
    pub(crate) access_mode: AccessMode,
    pub(crate) a: bool,
    pub(crate) rw: bool,
    pub(crate) rr: bool,
    pub(crate) lw: bool,
    pub(crate) lr: bool,
    pub(crate) relaxed_ordering_write: bool,
    pub(crate) relaxed_ordering_read: bool,
    pub(crate) mkey_7_0: u8,
    pub(crate) length64: bool,
    /// 24 bits.
    pub(crate) pd: u32,
    pub(crate) start_addr: u64,
    /// In bytes; not looked at with `length64`.
    pub(crate) len: u64,
    pub(crate) pg_access: bool,
    pub(crate) mkey_umem_valid: bool,
    pub(crate) mkey_umem_id: u32,
    pub(crate) mkey_umem_offset: u64,
    pub(crate) translations_octword_actual_size: u32,
    pub(crate) free: bool,
    pub(crate) small_fence_on_rdma_read_response: bool,
    pub(crate) umr_en: bool,
    pub(crate) ma_translation_mode: u8,
    /// 24 bits.
    pub(crate) qpn: u32,
    pub(crate) bsf_en: bool,
    pub(crate) sync_umr: bool,
    pub(crate) expected_sigerr_count: bool,
    pub(crate) en_rinval: bool,
    pub(crate) bsf_octword_size: u32,
    pub(crate) crossing_target_vhca_id: u16,
    pub(crate) translations_octword_size: u32,
    pub(crate) log_page_size: u8,
    pub(crate) crypto_en: u8,
    pub(crate) pcie_tph_en: bool,
    pub(crate) pcie_tph_ph: u8,
    pub(crate) pcie_tph_steering_tag_index: u8,
    /// Any bit that the layout reserves.
    pub(crate) reserved: bool,
}

/// What a command asks for.
///
/// # Errors
/// [`Status::BadParameter`] for an access mode that there is not.
pub(crate) fn parse(input: &[u8]) -> Result<MkeyContext, Status> {
    let context = input.get(CONTEXT).ok_or(Status::BadInputLength)?;
    let set = |field: Field| field.is_set(context);
    let access_mode = AccessMode::of(context).ok_or(Status::BadParameter)?;
    let mut rest = input.get(HEAD..LIST).ok_or(Status::BadInputLength)?.to_vec();
    rest.splice(0..0, [0; HEAD]);
    OF_COMMAND.iter().for_each(|field| field.set(&mut rest, 0));
    OF_CONTEXT.iter().for_each(|field| field.set(&mut rest[CONTEXT], 0));
    Ok(MkeyContext {
        data_direct: DATA_DIRECT.is_set(input),
        access_mode,
        a: set(ATOMIC),
        rw: set(REMOTE_WRITE),
        rr: set(REMOTE_READ),
        lw: set(LOCAL_WRITE),
        lr: set(LOCAL_READ),
        relaxed_ordering_write: set(RELAXED_WRITE),
        relaxed_ordering_read: set(RELAXED_READ),
        mkey_7_0: TAG.get(context) as u8,
        length64: set(LENGTH_64),
        pd: PD.get32(context),
        start_addr: START.get(context),
        len: LEN.get(context),
        pg_access: PAGING.is_set(input),
        mkey_umem_valid: UMEM_VALID.is_set(input),
        mkey_umem_id: UMEM_ID.get32(input),
        mkey_umem_offset: UMEM_OFFSET.get(input),
        translations_octword_actual_size: OCTOWORDS.get32(input),
        free: set(FREE),
        small_fence_on_rdma_read_response: set(SMALL_FENCE),
        umr_en: set(UMR_ENABLED),
        ma_translation_mode: MA_TRANSLATION.get(context) as u8,
        qpn: QPN.get32(context),
        bsf_en: set(SIGNED),
        sync_umr: set(SYNC_UMR),
        expected_sigerr_count: set(FAILED_CHECKS),
        en_rinval: set(REMOTE_INVALIDATE),
        bsf_octword_size: SIGNATURE_OCTOWORDS.get32(context),
        crossing_target_vhca_id: TARGET_DEVICE.get(context) as u16,
        translations_octword_size: CAPACITY.get32(context),
        log_page_size: LOG_PAGE_SIZE.get(context) as u8,
        crypto_en: CRYPTO_EN.get(context) as u8,
        pcie_tph_en: set(TPH_EN),
        pcie_tph_ph: TPH_HINT.get(context) as u8,
        pcie_tph_steering_tag_index: TPH_TAG.get(context) as u8,
        reserved: rest.iter().any(|byte| *byte != 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_the_command_is_a_field_or_reserved() {
        let plain = parse(&[0; LIST]).unwrap();
        for bit in HEAD * 8..LIST * 8 {
            let mut input = [0; LIST];
            input[bit / 8] = 0x80 >> (bit % 8);
            let Ok(context) = parse(&input) else {
                assert!(
                    (CONTEXT.start * 8 + 0x3..CONTEXT.start * 8 + 0x5).contains(&bit),
                    "bit {bit:#x}"
                );
                continue;
            };
            assert_ne!(context, plain, "bit {bit:#x} is lost");
        }
    }
}
