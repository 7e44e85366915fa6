//! Which device a thread's calls are for, and the primary contexts that the runtime holds.
//!
//! The driver's current context decides, whoever made it current. Where there is none, a call makes
//! the primary context of the thread's device current, which is device 0 until `cudaSetDevice`.

use crate::driver::{Driver, driver};
use crate::error::{Res, answer};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(0) };
}

/// A primary context that the runtime retains, or retained until it was reset.
#[derive(Clone, Copy)]
struct Primary {
    device: i32,
    is_newest: bool,
}

/// By their handles, which the driver gives to no other context again.
static PRIMARIES: Mutex<Option<HashMap<u64, Primary>>> = Mutex::new(None);

/// Works with the primary contexts.
fn with_primaries<T>(use_them: impl FnOnce(&mut HashMap<u64, Primary>) -> T) -> T {
    let mut primaries = PRIMARIES.lock().unwrap_or_else(PoisonError::into_inner);
    use_them(primaries.get_or_insert_default())
}

/// Whether a context has not ended.
fn is_alive(driver: &Driver, context: u64) -> bool {
    (driver.cuCtxGetApiVersion)(context, &mut 0) == 0
}

/// A device's primary context, retained once.
///
/// # Errors
/// `cudaErrorInvalidDevice`, and what making it says.
pub fn primary(driver: &Driver, device: i32) -> Res<u64> {
    with_primaries(|primaries| {
        let newest = |(_, kept): &(&u64, &Primary)| kept.device == device && kept.is_newest;
        if let Some((&context, _)) = primaries.iter().find(newest)
            && is_alive(driver, context)
        {
            return Ok(context);
        }
        let mut context = 0;
        answer((driver.cuDevicePrimaryCtxRetain)(&mut context, device))?;
        primaries.values_mut().filter(|kept| kept.device == device).for_each(|kept| {
            kept.is_newest = false;
        });
        primaries.insert(context, Primary { device, is_newest: true });
        Ok(context)
    })
}

/// The context that is current, unless it is a primary one that was reset.
fn current(driver: &Driver) -> Res<Option<u64>> {
    let mut context = 0;
    answer((driver.cuCtxGetCurrent)(&mut context))?;
    let is_ours = || with_primaries(|primaries| primaries.contains_key(&context));
    let is_over = context == 0 || !is_alive(driver, context) && is_ours();
    Ok((!is_over).then_some(context))
}

/// The driver, with a context current.
///
/// # Errors
/// Those of [`driver`] and of [`primary`].
pub fn ready() -> Res<&'static Driver> {
    let driver = driver()?;
    if current(driver)?.is_none() {
        answer((driver.cuCtxSetCurrent)(primary(driver, DEVICE.get())?))?;
    }
    Ok(driver)
}

/// The device that the thread's calls are for.
///
/// # Errors
/// Those of [`driver`].
pub fn device() -> Res<i32> {
    let driver = driver()?;
    let mut device = DEVICE.get();
    if current(driver)?.is_some() {
        answer((driver.cuCtxGetDevice)(&mut device))?;
    }
    Ok(device)
}

/// Makes the thread's calls be for a device, with its primary context current.
///
/// # Errors
/// `cudaErrorInvalidDevice`, and what making the context says.
pub fn set_device(device: i32) -> Res {
    let driver = driver()?;
    answer((driver.cuCtxSetCurrent)(primary(driver, device)?))?;
    DEVICE.set(device);
    Ok(())
}

/// Ends the primary context of the thread's device with all that is in it; the next call makes
/// another. Where a context is current that the program made, there is nothing to end.
///
/// # Errors
/// Those of [`driver`].
pub fn reset() -> Res {
    let driver = driver()?;
    let context = current(driver)?;
    let known = |context| with_primaries(|primaries| primaries.get(&context).copied());
    let device = match context.map(known) {
        None => DEVICE.get(),
        Some(Some(primary)) => primary.device,
        Some(None) if is_primary(driver, context)? => device()?,
        Some(None) => return Ok(()),
    };
    answer((driver.cuDevicePrimaryCtxReset_v2)(device))?;
    if context.is_some() {
        answer((driver.cuCtxSetCurrent)(0))?;
    }
    Ok(())
}

/// Whether a context that the runtime has not seen is the primary one of its device.
fn is_primary(driver: &Driver, context: Option<u64>) -> Res<bool> {
    let (device, mut active) = (device()?, 0);
    answer((driver.cuDevicePrimaryCtxGetState)(device, &mut 0, &mut active))?;
    // retained only where it is there, and then kept, as the runtime's own
    Ok(active != 0 && Some(primary(driver, device)?) == context)
}

/// Flags of the contexts of the thread's device (`cudaSetDeviceFlags`).
///
/// # Errors
/// `cudaErrorInvalidValue` for flags that are none.
pub fn set_flags(device: i32, flags: u32) -> Res {
    answer((driver()?.cuDevicePrimaryCtxSetFlags_v2)(device, flags))
}

/// Those flags.
///
/// # Errors
/// Those of [`driver`].
pub fn flags() -> Res<u32> {
    let driver = driver()?;
    let (mut flags, mut active) = (0, 0);
    if current(driver)?.is_some() {
        answer((driver.cuCtxGetFlags)(&mut flags))?;
    } else {
        answer((driver.cuDevicePrimaryCtxGetState)(DEVICE.get(), &mut flags, &mut active))?;
    }
    Ok(flags)
}

/// Makes a device's primary context, and leaves the thread as it is.
///
/// # Errors
/// `cudaErrorInvalidDevice`, and what making it says.
pub fn make(device: i32, flags: Option<u32>) -> Res {
    if let Some(flags) = flags {
        set_flags(device, flags)?;
    }
    primary(driver()?, device).map(drop)
}
