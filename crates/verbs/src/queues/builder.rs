//! What a queue pair's `ibv_wr_*` functions have collected between start and completion.

use crate::base::baton::Baton;
use crate::base::ffi::{Errno, Res};
use hca::{Error, SendWr};
use std::cell::RefCell;

/// What was collected so far.
#[derive(Default)]
pub(crate) struct Collected {
    /// At most as many as the queue takes, for which there is memory.
    pub(crate) requests: Vec<SendWr>,
    pub(crate) mistake: Option<Errno>,
    /// Calls that the request last begun still needs.
    pub(crate) setters: u8,
}

/// State of one QP's `ibv_wr_*` functions.
pub struct Builder {
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    pub(crate) baton: Baton,
    /// Used by the holder of the baton only.
    pub(crate) collected: RefCell<Collected>,
    pub(crate) max_send_wr: usize,
}

impl Builder {
    /// For a send queue of `max_send_wr` requests; ENOMEM without memory to collect them.
    pub fn new(max_send_wr: u32) -> Res<Builder> {
        let mut collected = Collected::default();
        let max_send_wr = max_send_wr as usize;
        let reserved = collected.requests.try_reserve_exact(max_send_wr);
        reserved.map_err(|_| Errno(libc::ENOMEM))?;
        Ok(Builder { baton: Baton::default(), collected: RefCell::new(collected), max_send_wr })
    }
}

impl Collected {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.mistake = None;
        self.setters = 0;
    }

    /// The first mistake is the one that `wr_complete` reports.
    pub(crate) fn note(&mut self, outcome: Result<(), Error>) {
        if let Err(error) = outcome {
            self.mistake.get_or_insert(Errno::from(error));
        }
    }
}
