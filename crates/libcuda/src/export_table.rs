//! Tables of functions that NVIDIA's runtime asks for by a UUID (`cuGetExportTable`), as ZLUDA's
//! authors describe them: the first word is the table's length in bytes, in most of them, and a
//! slot that is not described says so and answers `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! The table by which NVIDIA's runtime has a driver prove that it is NVIDIA's is not among them,
//! for this one is not, and does not say that it is. A runtime that insists refuses to work.

use crate::calls::{context, modules};
use crate::ffi::{ContextCallback, Out, contained};
use cuda::sys::{Access, Mapping};
use cuda::{Driver, Error, Handle, log};
use std::sync::OnceLock;

/// 6bd5fb6c-5bf4-e74a-8987-d93912fd9df9: modules and primary contexts.
const RUNTIME: [u8; 16] = 0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9_u128.to_be_bytes();
/// a094798c-2e74-2e74-93f2-0800200c0a66: callbacks for tools.
const HOOKS: [u8; 16] = 0xa094798c_2e74_2e74_93f2_0800200c0a66_u128.to_be_bytes();
/// 42d85a81-23f6-cb47-8298-f6e78a3aecdc: memory of threads, for tools.
const THREADS: [u8; 16] = 0x42d85a81_23f6_cb47_8298_f6e78a3aecdc_u128.to_be_bytes();
/// c693336e-1121-df11-a8c3-68f355d89593: values that are kept with a context.
const STORAGE: [u8; 16] = 0xc693336e_1121_df11_a8c3_68f355d89593_u128.to_be_bytes();
/// 263e8860-7cd2-6143-92f6-bbd5006dfa7e: what else a context is.
const CONTEXTS: [u8; 16] = 0x263e8860_7cd2_6143_92f6_bbd5006dfa7e_u128.to_be_bytes();

/// d4082055-bde6-704b-8d34-ba123c66e1f2: proof of a driver's origin.
const PROOF: [u8; 16] = 0xd4082055_bde6_704b_8d34_ba123c66e1f2_u128.to_be_bytes();

/// A table as programs read it.
type Table = Box<[usize]>;

/// The most slots that a table has.
const MOST: usize = 16;

/// Slots, all of them undescribed but for the first word.
fn table(slots: usize, described: &[(usize, usize)]) -> Table {
    let mut table: Vec<usize> = UNDESCRIBED.iter().take(slots).map(|f| *f as usize).collect();
    table[0] = slots * size_of::<usize>();
    for (slot, function) in described {
        table[*slot] = *function;
    }
    table.into()
}

/// The table of a UUID.
pub fn find(id: &[u8; 16]) -> Option<u64> {
    static TABLES: OnceLock<[([u8; 16], Table); 5]> = OnceLock::new();
    let tables = TABLES.get_or_init(|| {
        let runtime = [
            (1, load_1 as *const () as usize),
            (2, primary_context as *const () as usize),
            (6, load_2 as *const () as usize),
            (8, load_3 as *const () as usize),
        ];
        let hooks = [(2, room as *const () as usize), (6, room as *const () as usize)];
        let storage = [
            (0, keep as *const () as usize),
            (1, forget as *const () as usize),
            (2, kept as *const () as usize),
        ];
        let contexts = [(2, is_wrapped as *const () as usize), (3, nothing as *const () as usize)];
        [
            (RUNTIME, table(MOST, &runtime)),
            (HOOKS, table(7, &hooks)),
            (THREADS, table(4, &[])),
            (STORAGE, table(4, &storage)),
            (CONTEXTS, table(4, &contexts)),
        ]
    });
    let found = tables.iter().find(|(known, _)| known == id);
    if *id == PROOF {
        log::tell_once(
            "NVIDIA's CUDA runtime asks this driver to prove that it is NVIDIA's, which it is not: \
             the runtime will refuse it. Programs of the driver API run",
        );
    } else if found.is_none() {
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        log::say_once(format_args!("the export table {hex} is not there: CUDA_ERROR_NOT_FOUND"));
    }
    found.map(|(_, table)| table.as_ptr() as u64)
}

/// What is called at a slot that nothing describes.
extern "C" fn undescribed<const SLOT: usize>() -> u32 {
    log::say_once(format_args!("slot {SLOT} of an export table is called, which is not described"));
    Error::NOT_SUPPORTED.code()
}

macro_rules! undescribed {
    ($($slot:literal)*) => { [$(undescribed::<$slot>,)*] };
}

static UNDESCRIBED: [extern "C" fn() -> u32; MOST] =
    undescribed!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

extern "C" fn nothing() -> u32 {
    0
}

extern "C" fn load_1(module: Out<Handle>, image: u64) -> u32 {
    contained(|| modules::load(module, image))
}

extern "C" fn load_2(module: Out<Handle>, image: u64, _: u64, _: u64, _: u32) -> u32 {
    contained(|| modules::load(module, image))
}

extern "C" fn load_3(image: u64, module: Out<Handle>, _: u64, _: u64, _: u32) -> u32 {
    contained(|| modules::load(module, image))
}

/// The primary context of a device, which stays as long as the process.
extern "C" fn primary_context(context: Out<Handle>, device: i32) -> u32 {
    contained(|| {
        let (driver, context) = (Driver::get()?, context.checked()?);
        context.put(driver.retain_primary(device)?.handle())
    })
}

/// Room for tools, which nobody here looks into: words, and how many.
extern "C" fn room(words: Out<u64>, count: Out<u64>) {
    const WORDS: u64 = 1024;
    static ROOM: OnceLock<Option<Mapping>> = OnceLock::new();
    let room = ROOM.get_or_init(|| Mapping::anonymous(WORDS * 8, Access::Both).ok());
    words.put_if_asked(room.as_ref().map_or(0, Mapping::addr));
    count.put_if_asked(if room.is_some() { WORDS } else { 0 });
}

extern "C" fn keep(context: Handle, key: u64, value: u64, at_end: ContextCallback) -> u32 {
    contained(|| {
        let context = context::of_or_current(context)?;
        let handle = context.handle();
        context.store(key, value, move || {
            if let Some(at_end) = at_end {
                at_end(handle, key, value);
            }
        });
        Ok(())
    })
}

extern "C" fn forget(context: Handle, key: u64) -> u32 {
    contained(|| {
        context::of_or_current(context)?.forget(key);
        Ok(())
    })
}

extern "C" fn kept(value: Out<u64>, context: Handle, key: u64) -> u32 {
    contained(|| {
        let found = context::of_or_current(context)?.stored(key);
        value.put(found.ok_or(Error::INVALID_HANDLE)?)
    })
}

/// Whether a context stands for another one; none does.
extern "C" fn is_wrapped(_context: Handle, wrapped: Out<u32>, _other: Out<Handle>) -> u32 {
    contained(|| wrapped.put(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_their_length_and_no_empty_slot() {
        for (id, slots) in [(RUNTIME, MOST), (HOOKS, 7), (THREADS, 4), (STORAGE, 4), (CONTEXTS, 4)]
        {
            let found = find(&id).unwrap();
            assert_eq!(find(&id), Some(found), "the same each time");
            let built = table(slots, &[]);
            assert_eq!(built[0], slots * 8);
            assert!(built.iter().all(|slot| *slot != 0));
        }
        assert_eq!(find(&[0; 16]), None);
        assert_eq!(undescribed::<7>(), 801);
    }
}
