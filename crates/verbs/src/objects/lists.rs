//! Lists that programs post: linked lists of requests, and the scatter/gather lists in them, read
//! as they are walked.

use crate::base::ffi::{Errno, Res};
use hca::{Error, InlineData, Payload, RecvWr, SgList, Sge};
use mm::Source;
use std::ffi::c_int;
use verbs_sys::*;

/// Entries that any queue of this device may have; a longer list is wrong before it is read.
const MAX_SGE: usize = 32;

/// A scatter/gather list as a value, in what `lend` gives for that many entries.
///
/// # Safety
/// `list` is null or points to `count` entries.
pub unsafe fn sg_list(
    list: *const ibv_sge,
    count: usize,
    lend: impl FnOnce(usize) -> hca::Result<SgList>,
) -> hca::Result<SgList> {
    // SAFETY: the caller's promise.
    let mut entries = unsafe { entries(list, count) }?;
    match entries.len() {
        0 => return Ok(SgList::new()),
        1 => return Ok(entries.next().map_or_else(SgList::new, SgList::one)),
        _ => {}
    }
    let mut list = lend(count)?;
    list.extend(entries);
    Ok(list)
}

/// The entries of a list.
///
/// # Safety
/// `list` has `count` entries.
pub unsafe fn entries<'a>(
    list: *const ibv_sge,
    count: usize,
) -> hca::Result<impl ExactSizeIterator<Item = Sge> + Clone + use<'a>> {
    if count > MAX_SGE {
        return Err(Error::Invalid("more scatter/gather entries than the device has"));
    }
    if count > 0 && list.is_null() {
        return Err(Error::Invalid("the scatter/gather list is missing"));
    }
    let entries: &'a [ibv_sge] = match count {
        0 => &[],
        // SAFETY: the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(list, count) },
    };
    let entry = |entry: &ibv_sge| Sge { addr: entry.addr, length: entry.length, lkey: entry.lkey };
    Ok(entries.iter().map(entry))
}

/// Copies the bytes that `parts` name out of the program's memory, as inline data, into what `lend`
/// gives for so many bytes.
///
/// Guarded, so that a wrong address is EFAULT and not the program's end.
pub fn gather_inline(
    parts: impl Iterator<Item = Source<'static>> + Clone,
    max: u32,
    lend: impl FnOnce(usize) -> hca::Result<InlineData>,
) -> hca::Result<Payload> {
    let total = parts
        .clone()
        .try_fold(0u64, |total, part| total.checked_add(part.len()))
        .filter(|&total| total <= max.into())
        .map(|total| total as usize)
        .ok_or(Error::Invalid("more inline data than the queue pair has room for"))?;
    let mut bytes = lend(total)?;
    bytes.lengthen(total);
    let mut at = 0;
    for part in parts {
        let len = part.len() as usize;
        // A program that changes the list meanwhile finds it refused.
        let into = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..len));
        let into = into.ok_or(Error::Invalid("the list changed while it was read"))?;
        part.read(into).map_err(|_| Error::System(libc::EFAULT, "inline data is not readable"))?;
        at += len;
    }
    Ok(Payload::Inline(bytes))
}

/// A number of entries as C has it.
pub fn count_of(num_sge: c_int) -> hca::Result<usize> {
    usize::try_from(num_sge)
        .map_err(|_| Error::Invalid("negative number of scatter/gather entries"))
}

/// A linked list of requests, read as it is walked.
pub struct List<T> {
    next: *mut T,
    /// The request last handed out: where posting stopped, if it did.
    last: *mut T,
}

impl<T> List<T> {
    /// The list that begins with `first`.
    pub fn new(first: *mut T) -> List<T> {
        List { next: first, last: first }
    }

    /// The request last handed out.
    pub fn last(&self) -> *mut T {
        self.last
    }
}

/// A request that knows the one after it.
pub trait Linked {
    /// The one after it, or null.
    fn next(&self) -> *mut Self;
}

impl Linked for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Linked for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Linked for ibv_ops_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl<'a, T: Linked + 'a> List<T> {
    /// The next request.
    ///
    /// # Safety
    /// Every element is live.
    pub unsafe fn step(&mut self) -> Option<&'a T> {
        // SAFETY: the caller's promise.
        let element = unsafe { self.next.as_ref() }?;
        self.last = self.next;
        self.next = element.next();
        Some(element)
    }

    /// The next request, to be filled in.
    ///
    /// # Safety
    /// Every element is live and nobody else uses it.
    pub unsafe fn step_mut(&mut self) -> Option<&'a mut T> {
        // SAFETY: the caller's promise.
        let element = unsafe { self.next.as_mut() }?;
        self.last = self.next;
        self.next = element.next();
        Some(element)
    }
}

/// The failure of a post: the program learns at which request it stopped.
pub fn stopped<T>(bad: *mut *mut T, at: *mut T, error: Error) -> Res<()> {
    if !bad.is_null() {
        // SAFETY: the program passes null or a place to fill.
        unsafe { *bad = at };
    }
    Err(Errno::from(error))
}

/// A receive request as a value.
///
/// # Safety
/// `wr` and what it points to are live.
pub unsafe fn recv_wr(
    wr: &ibv_recv_wr,
    lend: impl FnOnce(usize) -> hca::Result<SgList>,
) -> hca::Result<RecvWr> {
    // SAFETY: the caller's promise.
    let scatter = unsafe { sg_list(wr.sg_list, count_of(wr.num_sge)?, lend) }?;
    Ok(RecvWr { wr_id: wr.wr_id, scatter })
}

/// Receive requests, read as they are taken.
pub type Requests<'a> = dyn Iterator<Item = hca::Result<RecvWr>> + 'a;

/// Posts a list by `post`, which takes what it asks for and stops at the first mistake; `lend`
/// gives the entries a place.
///
/// # Safety
/// Every element is live; `bad` is null or a place to fill.
pub unsafe fn recv_list(
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    lend: impl Fn(usize) -> hca::Result<SgList>,
    post: impl FnOnce(&mut Requests<'_>) -> hca::Result<()>,
) -> Res<()> {
    let mut list = List::new(wr);
    // SAFETY: the caller's promise.
    let mut requests = std::iter::from_fn(|| unsafe { list.step().map(|wr| recv_wr(wr, &lend)) });
    match post(&mut requests) {
        Ok(()) => Ok(()),
        Err(error) => stopped(bad, list.last, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_lists_are_checked_before_they_are_read() {
        let entries = [ibv_sge { addr: 1, length: 2, lkey: 3 }];
        // SAFETY: one entry is live; the other calls are refused before reading.
        unsafe {
            let lend = |_| Ok(SgList::new());
            let list = sg_list(entries.as_ptr(), 1, lend).unwrap();
            assert_eq!(list[0], Sge { addr: 1, length: 2, lkey: 3 });
            assert!(sg_list(entries.as_ptr(), MAX_SGE + 1, lend).is_err());
            assert!(sg_list(std::ptr::null(), 1, lend).is_err());
            assert!(sg_list(std::ptr::null(), 0, lend).unwrap().is_empty());
        }
        assert!(count_of(-1).is_err());
    }

    #[test]
    fn inline_data_is_copied_and_bounded() {
        mm::guard::install();
        let bytes = *b"abcdef";
        // SAFETY: the local, which lives and is not written, or addresses that are never used.
        let part = |addr, len| unsafe { Source::vouched(addr, len) };
        let at = bytes.as_ptr() as u64;
        let parts = [part(at + 3, 3), part(at, 2)];
        let lend = |_| Ok(InlineData::new());
        let Ok(Payload::Inline(copied)) = gather_inline(parts.into_iter(), 5, lend) else {
            panic!("refused")
        };
        assert_eq!(&*copied, b"defab");
        assert!(matches!(gather_inline(parts.into_iter(), 4, lend), Err(Error::Invalid(_))));
        let huge = [part(at, u64::MAX), part(at, 2)];
        assert!(matches!(gather_inline(huge.into_iter(), 100, lend), Err(Error::Invalid(_))));
        let wild = [part(8, 4)];
        let refused = gather_inline(wild.into_iter(), 100, lend);
        assert!(matches!(refused, Err(Error::System(libc::EFAULT, _))));
    }

    #[test]
    fn a_list_remembers_where_it_stopped() {
        let mut second = ibv_recv_wr {
            wr_id: 2,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        };
        let mut first = ibv_recv_wr {
            wr_id: 1,
            next: &mut second,
            ..ibv_recv_wr {
                wr_id: 0,
                next: std::ptr::null_mut(),
                sg_list: std::ptr::null_mut(),
                num_sge: 0,
            }
        };
        let mut list = List::new(&raw mut first);
        // SAFETY: both elements are live.
        unsafe {
            assert_eq!(list.step().unwrap().wr_id, 1);
            assert_eq!(list.step().unwrap().wr_id, 2);
            assert_eq!((*list.last).wr_id, 2);
            assert!(list.step().is_none());
        }
        assert_eq!(list.last, &raw mut second);
    }
}
