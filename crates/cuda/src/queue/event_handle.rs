//! What is handed to another process so that it finds an event (`cuIpcGetEventHandle`): the
//! process, its descriptor of the event's memory, and which file that is.

use super::shared::Shared;
use crate::memory::{IPC_BYTES, Which, which};
use crate::{Error, Res, log};
use std::fs::File;
use std::os::fd::AsRawFd;

const MAGIC: [u8; 8] = *b"peerdmaE";

/// What a handle says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventHandle {
    process: u32,
    fd: u32,
    which: Which,
}

impl EventHandle {
    /// That of an event of this process.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` for one of another.
    pub(super) fn of(event: &Shared) -> Res<EventHandle> {
        let fd = event.fd().ok_or(Error::INVALID_HANDLE)?;
        let which = which(&File::from(fd.try_clone_to_owned()?))?;
        Ok(EventHandle { process: std::process::id(), fd: fd.as_raw_fd().cast_unsigned(), which })
    }

    /// The event's memory.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_CONTEXT` for one of this process; `CUDA_ERROR_INVALID_HANDLE` where the
    /// process or its event is gone.
    pub(super) fn open(&self) -> Res<Shared> {
        if self.process == std::process::id() {
            return Err(Error::INVALID_CONTEXT);
        }
        self.find()
    }

    fn find(&self) -> Res<Shared> {
        let found = shm::memfd_of_process(self.process, self.fd).map_err(|error| {
            log::say(format_args!("an event of process {}: {error}", self.process));
            Error::INVALID_HANDLE
        });
        let file = File::from(found?);
        if which(&file)? != self.which {
            return Err(Error::INVALID_HANDLE);
        }
        Shared::open(file.into())
    }

    /// As C has it.
    pub fn to_bytes(self) -> [u8; IPC_BYTES] {
        let (process, fd) = (self.process.to_le_bytes(), self.fd.to_le_bytes());
        let which = (self.which.0.to_le_bytes(), self.which.1.to_le_bytes());
        let mut bytes = [0; IPC_BYTES];
        let parts = MAGIC.iter().chain(&process).chain(&fd).chain(&which.0).chain(&which.1);
        bytes.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
        bytes
    }

    /// What bytes say; `None` for those that are no handle.
    pub fn from_bytes(bytes: &[u8; IPC_BYTES]) -> Option<EventHandle> {
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let which = (long(16)?, long(24)?);
        let handle = EventHandle { process: word(8)?, fd: word(12)?, which };
        (handle.to_bytes() == *bytes).then_some(handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_its_bytes_and_others_are_none() {
        let event = Shared::create().unwrap();
        let handle = EventHandle::of(&event).unwrap();
        let bytes = handle.to_bytes();
        assert_eq!(EventHandle::from_bytes(&bytes), Some(handle));
        for at in [0, 7, 32, 63] {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(EventHandle::from_bytes(&wrong), None, "byte {at}");
        }
        assert_eq!(handle.open().unwrap_err(), Error::INVALID_CONTEXT);
    }

    #[test]
    fn a_descriptor_that_has_become_another_event_is_not_opened() {
        let (event, other) = (Shared::create().unwrap(), Shared::create().unwrap());
        let [handle, another] = [&event, &other].map(|event| EventHandle::of(event).unwrap());
        handle.find().unwrap();
        let stale = EventHandle { fd: another.fd, ..handle };
        assert_eq!(stale.find().unwrap_err(), Error::INVALID_HANDLE);
    }

    #[test]
    fn what_is_gone_or_another_file_is_not_opened() {
        let event = Shared::create().unwrap();
        let handle = EventHandle::of(&event).unwrap();
        // The process that started this one has no such descriptor, or another file behind it.
        let process = std::os::unix::process::parent_id();
        for wrong in [EventHandle { process, ..handle }, EventHandle { process: 0, ..handle }] {
            assert_eq!(wrong.open().unwrap_err(), Error::INVALID_HANDLE);
        }
    }
}
