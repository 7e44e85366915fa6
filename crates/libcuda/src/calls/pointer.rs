//! What the driver says of an address (`cuPointerGetAttribute`).

use crate::ffi::{In, Out};
use cuda::memory::{Memory, Origin, Range};
use cuda::{Driver, Error};
use std::sync::atomic::Ordering::Relaxed;

/// A value of an attribute, as wide as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    Word(u32),
    Long(u64),
}

impl Value {
    fn put(self, out: Out<u8>) -> cuda::Res {
        match self {
            Value::Word(value) => out.as_other().put(value),
            Value::Long(value) => out.as_other().put(value),
        }
    }
}

/// `CU_MEMORYTYPE_HOST`, `CU_MEMORYTYPE_DEVICE`.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// The ordinal of the device that asks: the current context's, or without one the range's.
fn asking(range: &Range) -> u32 {
    let of_current = || -> cuda::Res<i32> { Ok(Driver::get()?.ordinal(cuda::current()?.gpu())) };
    of_current().unwrap_or(range.ordinal).try_into().unwrap_or(0)
}

/// The value of an attribute at an address of a range.
fn value(range: &Range, addr: u64, attribute: u32) -> cuda::Res<Value> {
    let device = range.device();
    let is_device = device.is_some();
    let is_managed = matches!(range.memory, Memory::Managed(_));
    let flag = |is_so: bool| Ok(Value::Word(u32::from(is_so)));
    let (start, len) = (range.start, range.len);
    let shown = device.is_none_or(|device| {
        let found = device.physical.gpu().found();
        found.bar_bytes > 0
    });
    match attribute {
        1 => Ok(Value::Long(range.context)),
        2 => Ok(Value::Word(if is_device || is_managed { DEVICE } else { HOST })),
        3 => Ok(Value::Long(addr)),
        // a GPU's memory has no address on the host
        4 if is_device => Err(Error::INVALID_VALUE),
        4 => Ok(Value::Long(addr)),
        5 => Err(Error::NOT_SUPPORTED),
        6 => flag(range.syncs.load(Relaxed)),
        7 => Ok(Value::Long(range.id)),
        8 => flag(is_managed),
        9 => Ok(Value::Word(range.ordinal as u32)),
        10 => flag(device.is_some_and(|device| device.origin == Origin::Alloc)),
        11 => Ok(Value::Long(start)),
        12 => Ok(Value::Long(len)),
        13 => flag(true),
        14 => {
            let types = device.map_or(0, |device| device.physical.wanted().handle_types);
            Ok(Value::Long(types.into()))
        }
        15 => flag(is_device && shown),
        16 => Ok(Value::Word(device.map_or(3, |device| device.access.of(asking(range))))),
        17 => Ok(Value::Long(match device.map(|device| device.origin) {
            Some(Origin::Pool(pool)) => pool,
            _ => 0,
        })),
        18 => Ok(Value::Long(device.map_or(len, |device| device.physical.len()))),
        19 => Ok(Value::Long(device.map_or(start, |device| start - device.offset))),
        20 => Ok(Value::Long(device.map_or(range.id, |device| device.physical.id()))),
        21 => flag(false),
        22 => Ok(Value::Word(u32::MAX)),
        _ => Err(Error::INVALID_VALUE),
    }
}

/// What is answered, where several are asked, of an address that the driver does not know.
fn unknown(attribute: u32) -> cuda::Res<Value> {
    match attribute {
        9 => Ok(Value::Word(-2i32 as u32)),
        2 | 6 | 8 | 10 | 13 | 15 | 16 | 21 => Ok(Value::Word(0)),
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17 | 18 | 19 | 20 => Ok(Value::Long(0)),
        22 => Ok(Value::Word(u32::MAX)),
        5 => Err(Error::NOT_SUPPORTED),
        _ => Err(Error::INVALID_VALUE),
    }
}

api! {
    fn cuPointerGetAttribute(out: Out<u8>, attribute: u32, addr: u64) {
        let (driver, out) = (Driver::get()?, out.checked()?);
        let range = driver.space.at(addr).ok_or(Error::INVALID_VALUE)?;
        value(&range, addr, attribute)?.put(out)
    }

    fn cuPointerGetAttributes(
        count: u32, attributes: In<u32>, outs: In<Out<u8>>, addr: u64,
    ) {
        let driver = Driver::get()?;
        let (attributes, outs) = (attributes.array(count as usize)?, outs.array(count as usize)?);
        let range = driver.space.at(addr);
        for (attribute, out) in attributes.into_iter().zip(outs) {
            let found = match &range {
                Some(range) => value(range, addr, attribute).or_else(|_| unknown(attribute)),
                None => unknown(attribute),
            };
            found?.put(out)?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(new: In<u32>, attribute: u32, addr: u64) {
        let range = Driver::get()?.space.at(addr).ok_or(Error::INVALID_VALUE)?;
        if attribute != 6 {
            return Err(Error::INVALID_VALUE);
        }
        range.syncs.store(new.get()? != 0, Relaxed);
        Ok(())
    }
}
