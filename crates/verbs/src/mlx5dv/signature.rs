//! Block signatures as `mlx5dv.h` describes them, and what a check of them found.
//!
//! Every value is looked at as libmlx5 does; what it refuses is EINVAL here too.

use crate::base::ffi::{INVALID, Res};
use hca::{BlockSignature, Error, Escape, GuardKind, Signature, SignatureDomain, SignatureError};
use hca::{SignatureFault, T10Dif};

// enum mlx5dv_sig_type
const T10DIF: u32 = 0;
const CRC: u32 = 1;
// enum mlx5dv_sig_t10dif_flags
const REF_REMAP: u16 = 1 << 0;
const APP_ESCAPE: u16 = 1 << 1;
const APP_REF_ESCAPE: u16 = 1 << 2;
// enum mlx5dv_sig_block_attr_flags
const COPY_MASK: u32 = 1 << 0;
// enum mlx5dv_mkey_err_type
const NO_ERR: u32 = 0;
const BAD_GUARD: u32 = 1;
const BAD_REFTAG: u32 = 2;
const BAD_APPTAG: u32 = 3;

/// Bytes of a block by `enum mlx5dv_block_size`.
const BLOCK_SIZES: [u32; 5] = [512, 520, 4048, 4096, 4160];

/// `struct mlx5dv_sig_caps`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct mlx5dv_sig_caps {
    block_size: u64,
    block_prot: u32,
    t10dif_bg: u16,
    crc_type: u16,
}

/// All that there is.
pub(crate) const CAPS: mlx5dv_sig_caps = mlx5dv_sig_caps {
    block_size: (1 << BLOCK_SIZES.len()) - 1,
    block_prot: 1 << T10DIF | 1 << CRC,
    t10dif_bg: 0b11,
    crc_type: 0b111,
};

/// `struct mlx5dv_sig_t10dif`.
#[repr(C)]
pub(crate) struct mlx5dv_sig_t10dif {
    bg_type: u32,
    bg: u16,
    app_tag: u16,
    ref_tag: u32,
    flags: u16,
}

/// `struct mlx5dv_sig_crc`.
#[repr(C)]
pub(crate) struct mlx5dv_sig_crc {
    kind: u32,
    seed: u64,
}

/// `struct mlx5dv_sig_block_domain`.
#[repr(C)]
pub(crate) struct mlx5dv_sig_block_domain {
    sig_type: u32,
    sig: SignaturePointer,
    block_size: u32,
    comp_mask: u64,
}

/// The union of its two pointers.
#[repr(C)]
pub(crate) union SignaturePointer {
    dif: *const mlx5dv_sig_t10dif,
    crc: *const mlx5dv_sig_crc,
}

/// `struct mlx5dv_sig_block_attr`.
#[repr(C)]
pub(crate) struct mlx5dv_sig_block_attr {
    mem: *const mlx5dv_sig_block_domain,
    wire: *const mlx5dv_sig_block_domain,
    flags: u32,
    check_mask: u8,
    copy_mask: u8,
    comp_mask: u64,
}

/// `struct mlx5dv_mkey_err`, with the one member of its union.
#[repr(C)]
#[derive(PartialEq, Debug)]
pub(crate) struct mlx5dv_mkey_err {
    err_type: u32,
    actual_value: u64,
    expected_value: u64,
    offset: u64,
}

/// The signatures that the program describes.
///
/// # Safety
/// The struct names null or live ones.
pub(crate) unsafe fn block_signature(attr: &mlx5dv_sig_block_attr) -> hca::Result<BlockSignature> {
    if attr.flags & !COPY_MASK != 0 || attr.comp_mask != 0 {
        return Err(Error::Invalid("unknown flags of mlx5dv_sig_block_attr"));
    }
    // SAFETY: the caller's promise.
    let (mem, wire) = unsafe { (attr.mem.as_ref(), attr.wire.as_ref()) };
    // SAFETY: the caller's promise.
    let read = |domain: Option<&_>| domain.map(|domain| unsafe { read_domain(domain) }).transpose();
    let copy = (attr.flags & COPY_MASK != 0).then_some(attr.copy_mask);
    BlockSignature::new(read(mem)?, read(wire)?, attr.check_mask, copy)
}

/// # Safety
/// As for [`block_signature`].
unsafe fn read_domain(domain: &mlx5dv_sig_block_domain) -> hca::Result<SignatureDomain> {
    let block = usize::try_from(domain.block_size).ok().and_then(|size| BLOCK_SIZES.get(size));
    let (Some(&block), 0) = (block, domain.comp_mask) else {
        return Err(Error::Invalid("a block size or comp_mask that does not exist"));
    };
    let missing = Error::Invalid("mlx5dv_sig_block_domain names no signature");
    let signature = match domain.sig_type {
        // SAFETY: the caller's promise; the type says which pointer it is.
        T10DIF => t10_dif(unsafe { domain.sig.dif.as_ref() }.ok_or(missing)?)?,
        // SAFETY: as above.
        CRC => crc(unsafe { domain.sig.crc.as_ref() }.ok_or(missing)?)?,
        _ => return Err(Error::Invalid("unknown mlx5dv_sig_type")),
    };
    Ok(SignatureDomain { block, signature })
}

fn t10_dif(dif: &mlx5dv_sig_t10dif) -> hca::Result<Signature> {
    let guard = match dif.bg_type {
        0 => GuardKind::T10Crc,
        1 => GuardKind::IpChecksum,
        _ => return Err(Error::Invalid("unknown mlx5dv_sig_t10dif_bg_type")),
    };
    if dif.flags & !(REF_REMAP | APP_ESCAPE | APP_REF_ESCAPE) != 0 {
        return Err(Error::Invalid("unknown mlx5dv_sig_t10dif_flags"));
    }
    // Where both are set the narrower one counts, as in libmlx5.
    let escape = match dif.flags {
        flags if flags & APP_REF_ESCAPE != 0 => Escape::AppAndRefTag,
        flags if flags & APP_ESCAPE != 0 => Escape::AppTag,
        _ => Escape::Never,
    };
    Ok(Signature::T10Dif(T10Dif {
        guard,
        seeded: seeded(dif.bg.into(), u16::MAX.into())?,
        app_tag: dif.app_tag,
        ref_tag: dif.ref_tag,
        increments: dif.flags & REF_REMAP != 0,
        escape,
    }))
}

fn crc(crc: &mlx5dv_sig_crc) -> hca::Result<Signature> {
    let (guard, ones) = match crc.kind {
        0 => (GuardKind::Crc32, u32::MAX.into()),
        1 => (GuardKind::Crc32c, u32::MAX.into()),
        2 => (GuardKind::Crc64Xp10, u64::MAX),
        _ => return Err(Error::Invalid("unknown mlx5dv_sig_crc_type")),
    };
    Ok(Signature::Crc { guard, seeded: seeded(crc.seed, ones)? })
}

fn seeded(seed: u64, ones: u64) -> hca::Result<bool> {
    match seed {
        0 => Ok(false),
        seed if seed == ones => Ok(true),
        _ => Err(Error::Invalid("a seed other than all zeros and all ones")),
    }
}

impl From<Option<SignatureError>> for mlx5dv_mkey_err {
    fn from(found: Option<SignatureError>) -> mlx5dv_mkey_err {
        let none =
            SignatureError { fault: SignatureFault::Guard, actual: 0, expected: 0, offset: 0 };
        let error = found.unwrap_or(none);
        let err_type = match found.map(|error| error.fault) {
            None => NO_ERR,
            Some(SignatureFault::Guard) => BAD_GUARD,
            Some(SignatureFault::RefTag) => BAD_REFTAG,
            Some(SignatureFault::AppTag) => BAD_APPTAG,
        };
        mlx5dv_mkey_err {
            err_type,
            actual_value: error.actual,
            expected_value: error.expected,
            offset: error.offset,
        }
    }
}

/// Writes as much of the answer as the program's struct has room for.
///
/// # Safety
/// `into` is null or has `size` bytes.
pub(crate) unsafe fn answer(
    found: Option<SignatureError>,
    into: *mut mlx5dv_mkey_err,
    size: usize,
) -> Res<()> {
    if into.is_null() {
        return Err(INVALID);
    }
    let answer = mlx5dv_mkey_err::from(found);
    let size = size.min(std::mem::size_of::<mlx5dv_mkey_err>());
    // SAFETY: the caller's promise; the source is longer than what is copied.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), into.cast::<u8>(), size);
    }
    Ok(())
}
