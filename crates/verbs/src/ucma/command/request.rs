//! One command while it is carried out: where its structure and its answer are in the program's
//! memory, and whom it asks.

use super::header::Header;
use crate::base::ffi::{Errno, Res};
use crate::connection::service::Service;
use crate::ucma::channel::Channel;
use crate::ucma::host;
use crate::ucma::layout::{self, STORAGE_LEN};
use cma::{Error, Key};
use std::os::fd::RawFd;

/// Longest structure of a command.
const MAX_COMMAND_LEN: usize = 8 + 8 + 2 * STORAGE_LEN + 64;

/// The errno of a refusal.
pub fn errno(error: Error) -> Errno {
    Errno(error.0)
}

/// One command on its way.
pub(super) struct Command<'a> {
    pub(super) channel: &'a Channel,
    pub(super) service: &'a Service,
    pub(super) fd: RawFd,
    pub(super) header: Header,
    /// Where the structure is in the program's memory.
    pub(super) at: u64,
}

impl Command<'_> {
    /// Reads the command's structure.
    pub(super) fn read<const N: usize>(&self) -> Res<[u8; N]> {
        const { assert!(N <= MAX_COMMAND_LEN + 256) };
        // SAFETY: the command is the program's own (`run`).
        unsafe { layout::read::<N>(self.at) }
    }

    /// The same for commands that grew: what the program did not pass is zero.
    pub(super) fn read_passed<const N: usize>(&self) -> Res<[u8; N]> {
        let mut bytes = [0; N];
        let passed = self.header.in_len.min(N);
        let into = bytes.get_mut(..passed).unwrap_or_default();
        // SAFETY: the command is the program's own (`run`).
        unsafe { layout::read_into(self.at, into) }?;
        Ok(bytes)
    }

    /// Writes an answer to the place that the command names, cut to `room`.
    pub(super) fn answer(&self, at: u64, bytes: &[u8], room: usize) -> Res<()> {
        // SAFETY: the command is the program's own (`run`).
        unsafe { layout::write(at, bytes, room) }
    }

    pub(super) fn room_for(&self, len: usize) -> Res<()> {
        if self.header.out_len < len { Err(Errno(libc::ENOSPC)) } else { Ok(()) }
    }

    pub(super) fn with<R>(&self, call: impl FnOnce(&mut cma::Cma) -> Result<R, Error>) -> Res<R> {
        self.service.with(self.channel.id(), self.fd, call).map_err(errno)
    }

    pub(super) fn key(&self, handle: u32) -> Res<Key> {
        self.with(|cma| cma.key(self.channel.id(), handle))
    }

    /// Finds out what an accepted connection's address is among the device's, before it is asked
    /// for.
    pub(super) fn find_local(&self, key: Key) -> Res<()> {
        if let Some((ip, ifindex)) = self.with(|cma| Ok(cma.lacks_local(key)))?
            && let Some(local) = host::local(self.channel, ip, ifindex)
        {
            self.with(|cma| {
                cma.set_local(key, local);
                Ok(())
            })?;
        }
        Ok(())
    }
}
