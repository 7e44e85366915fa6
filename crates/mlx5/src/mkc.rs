//! The fields of the command that makes a memory key (`create_mkey_in` and its `mkc` in `mlx5_ifc.h`) as the HCA names them, for its
//! rule on keys of the Data Direct function.

use crate::bits::Field;
use crate::opcode::Status;
use hca::{AccessMode, MkeyContext};

/// Where the command has the context, in bits; the list's offset in bytes.
const CONTEXT: usize = 0x80;
const LIST: usize = 0x110;
/// The opcode and what else every command begins with, in bytes.
const HEAD: usize = 8;

pub(crate) const DATA_DIRECT: Field = Field::new(0x62, 1);

const PG_ACCESS: Field = Field::new(0x60, 1);
const UMEM_VALID: Field = Field::new(0x61, 1);
const ACTUAL_OCTOWORDS: Field = Field::new(0x300, 32);
const UMEM_ID: Field = Field::new(0x320, 32);
const UMEM_OFFSET: Field = Field::new(0x340, 64);

const fn field(bit: usize, width: usize) -> Field {
    Field::new(CONTEXT + bit, width)
}

const FREE: Field = field(0x1, 1);
const MODE_HIGH: Field = field(0x3, 3);
const RELAXED_WRITE: Field = field(0xd, 1);
const SMALL_FENCE: Field = field(0xf, 1);
const UMR_EN: Field = field(0x10, 1);
const ATOMIC: Field = field(0x11, 1);
const REMOTE_WRITE: Field = field(0x12, 1);
const REMOTE_READ: Field = field(0x13, 1);
const LOCAL_WRITE: Field = field(0x14, 1);
const LOCAL_READ: Field = field(0x15, 1);
const MODE_LOW: Field = field(0x16, 2);
const MA_TRANSLATION: Field = field(0x1a, 2);
const QPN: Field = field(0x20, 24);
const TAG: Field = field(0x38, 8);
const LENGTH_64: Field = field(0x60, 1);
const BSF_EN: Field = field(0x61, 1);
const SYNC_UMR: Field = field(0x62, 1);
const EXPECTED_SIGERR: Field = field(0x65, 1);
const EN_RINVAL: Field = field(0x67, 1);
pub(crate) const PD: Field = field(0x68, 24);
const START: Field = field(0x80, 64);
const LEN: Field = field(0xc0, 64);
const BSF_OCTOWORDS: Field = field(0x100, 32);
const CROSSING_TARGET: Field = field(0x180, 16);
const OCTOWORDS: Field = field(0x1a0, 32);
const RELAXED_READ: Field = field(0x1d9, 1);
const LOG_PAGE_SIZE: Field = field(0x1da, 6);
const CRYPTO_EN: Field = field(0x1e3, 2);
const TPH_EN: Field = field(0x1e5, 1);
const TPH_HINT: Field = field(0x1e6, 2);
const TPH_TAG: Field = field(0x1e8, 8);

/// All of them, to find what is set besides.
const KNOWN: [Field; 37] = [
    DATA_DIRECT,
    PG_ACCESS,
    UMEM_VALID,
    ACTUAL_OCTOWORDS,
    UMEM_ID,
    UMEM_OFFSET,
    FREE,
    MODE_HIGH,
    RELAXED_WRITE,
    SMALL_FENCE,
    UMR_EN,
    ATOMIC,
    REMOTE_WRITE,
    REMOTE_READ,
    LOCAL_WRITE,
    LOCAL_READ,
    MODE_LOW,
    MA_TRANSLATION,
    QPN,
    TAG,
    LENGTH_64,
    BSF_EN,
    SYNC_UMR,
    EXPECTED_SIGERR,
    EN_RINVAL,
    PD,
    START,
    LEN,
    BSF_OCTOWORDS,
    CROSSING_TARGET,
    OCTOWORDS,
    RELAXED_READ,
    LOG_PAGE_SIZE,
    CRYPTO_EN,
    TPH_EN,
    TPH_HINT,
    TPH_TAG,
];

/// Whether a program may ask for such a key: one over parts of keys of its own. Addresses of the machine, keys of other
/// domains and the Data Direct function are the driver's.
pub(crate) fn is_for_users(input: &[u8]) -> bool {
    let mode = parse(input).map(|context| context.access_mode);
    matches!(mode, Ok(AccessMode::Klms | AccessMode::Ksm)) && !DATA_DIRECT.is_set(input)
}

/// What a command asks for.
///
/// # Errors
/// [`Status::BadParameter`] for an access mode that there is not.
pub(crate) fn parse(input: &[u8]) -> Result<MkeyContext, Status> {
    let set = |field: Field| field.is_set(input);
    let access_mode = match MODE_HIGH.get(input) << 2 | MODE_LOW.get(input) {
        0 => AccessMode::Pa,
        1 => AccessMode::Mtt,
        2 => AccessMode::Klms,
        3 => AccessMode::Ksm,
        4 => AccessMode::SwIcm,
        5 => AccessMode::Memic,
        6 => AccessMode::Crossing,
        _ => return Err(Status::BadParameter),
    };
    let mut rest = input.get(HEAD..LIST).ok_or(Status::BadInputLength)?.to_vec();
    rest.splice(0..0, [0; HEAD]);
    KNOWN.iter().for_each(|field| field.set(&mut rest, 0));
    Ok(MkeyContext {
        data_direct: set(DATA_DIRECT),
        access_mode,
        a: set(ATOMIC),
        rw: set(REMOTE_WRITE),
        rr: set(REMOTE_READ),
        lw: set(LOCAL_WRITE),
        lr: set(LOCAL_READ),
        relaxed_ordering_write: set(RELAXED_WRITE),
        relaxed_ordering_read: set(RELAXED_READ),
        mkey_7_0: TAG.get(input) as u8,
        length64: set(LENGTH_64),
        pd: PD.get32(input),
        start_addr: START.get(input),
        len: LEN.get(input),
        pg_access: set(PG_ACCESS),
        mkey_umem_valid: set(UMEM_VALID),
        mkey_umem_id: UMEM_ID.get32(input),
        mkey_umem_offset: UMEM_OFFSET.get(input),
        translations_octword_actual_size: ACTUAL_OCTOWORDS.get32(input),
        free: set(FREE),
        small_fence_on_rdma_read_response: set(SMALL_FENCE),
        umr_en: set(UMR_EN),
        ma_translation_mode: MA_TRANSLATION.get(input) as u8,
        qpn: QPN.get32(input),
        bsf_en: set(BSF_EN),
        sync_umr: set(SYNC_UMR),
        expected_sigerr_count: set(EXPECTED_SIGERR),
        en_rinval: set(EN_RINVAL),
        bsf_octword_size: BSF_OCTOWORDS.get32(input),
        crossing_target_vhca_id: CROSSING_TARGET.get(input) as u16,
        translations_octword_size: OCTOWORDS.get32(input),
        log_page_size: LOG_PAGE_SIZE.get(input) as u8,
        crypto_en: CRYPTO_EN.get(input) as u8,
        pcie_tph_en: set(TPH_EN),
        pcie_tph_ph: TPH_HINT.get(input) as u8,
        pcie_tph_steering_tag_index: TPH_TAG.get(input) as u8,
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
                assert!((CONTEXT + 0x3..CONTEXT + 0x5).contains(&bit), "bit {bit:#x}");
                continue;
            };
            assert_ne!(context, plain, "bit {bit:#x} is lost");
        }
    }

    #[test]
    fn the_keys_that_linux_makes_for_the_function_are_in_order() {
        let mut input = [0; LIST];
        let ones = [DATA_DIRECT, ATOMIC, REMOTE_WRITE, REMOTE_READ, LOCAL_WRITE, LOCAL_READ];
        ones.iter().for_each(|field| field.set(&mut input, 1));
        LENGTH_64.set(&mut input, 1);
        PD.set(&mut input, 7);
        QPN.set(&mut input, 0xff_ffff);
        assert_eq!(parse(&input).unwrap().check_data_direct(true), Ok(()));
        RELAXED_READ.set(&mut input, 1);
        RELAXED_WRITE.set(&mut input, 1);
        assert_eq!(parse(&input).unwrap().check_data_direct(true), Ok(()));
        EN_RINVAL.set(&mut input, 1);
        assert!(parse(&input).unwrap().check_data_direct(true).is_err());
    }
}
