//! Requests of the program: posted, taken back, and the stores for what they bring along.

use super::{Core, Qp};
use crate::adapter::Adapter;
use crate::objects::ah::handle_of;
use std::time::Instant;
use transport::values::*;
use transport::{Error, Result};

impl Qp {
    /// An empty list for `len` entries of a send request; its store is the queue's, while no more
    /// requests are under way than the queue takes.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when there are more, and the system has no memory.
    pub fn gather_list(&self, len: usize) -> Result<SgList> {
        self.shelves.gathers.lend(len)
    }

    /// The same for `len` bytes that a send request brings along.
    ///
    /// # Errors
    /// As [`Qp::gather_list`].
    pub fn inline_data(&self, len: usize) -> Result<InlineData> {
        self.shelves.inline.lend(len)
    }

    /// The same for the entries of a receive request.
    ///
    /// # Errors
    /// As [`Qp::gather_list`].
    pub fn scatter_list(&self, len: usize) -> Result<SgList> {
        self.shelves.scatters.lend(len)
    }

    /// Posts send requests in order and emits as much as window and peer allow, in the caller's
    /// thread.
    ///
    /// # Errors
    /// The index of the first request refused, and why; those before it are posted.
    pub fn post_send(
        &self,
        requests: &mut dyn Iterator<Item = Result<SendWr>>,
    ) -> std::result::Result<(), (usize, Error)> {
        let adapter = self.adapter().map_err(|error| (0, error))?;
        let mut core = self.core();
        let now = Instant::now();
        self.note_post(&mut core, now);
        let mut outcome = Ok(());
        for (index, request) in requests.enumerate() {
            if let Ok(request) = &request
                && !knows_way(request)
            {
                drop(core);
                find_way(&adapter, request);
                core = self.core();
            }
            let posted = request.and_then(|request| core.transport.post_send(request));
            if let Err(error) = posted {
                outcome = Err((index, error));
                break;
            }
        }
        if !core.transport.waits_for_company() {
            self.transmit(&adapter, &mut core, now);
        }
        outcome
    }

    /// Posts all of `batch` in order, which is empty then, and emits as [`Qp::post_send`] does, or
    /// refuses it as a whole.
    ///
    /// # Errors
    /// Why the first wrong request is wrong, or that there is no room for all.
    pub fn post_sends(&self, batch: &mut Vec<SendWr>) -> Result<()> {
        if let [wr] = &batch[..]
            && self.post_if_short(wr)
        {
            batch.clear();
            return Ok(());
        }
        let adapter = self.adapter()?;
        batch.iter().filter(|request| !knows_way(request)).for_each(|r| find_way(&adapter, r));
        let mut core = self.core();
        let now = Instant::now();
        self.note_post(&mut core, now);
        core.transport.post_sends(batch)?;
        if !core.transport.waits_for_company() {
            self.transmit(&adapter, &mut core, now);
        }
        Ok(())
    }

    pub(super) fn note_post(&self, core: &mut Core, now: Instant) {
        core.transport.note_posts_in_a_row(core.posts.note(self.polls(), now));
    }

    /// How often the completions of its send requests have been asked for.
    pub(super) fn polls(&self) -> u32 {
        self.init.send_cq.as_ref().map_or(0, |cq| cq.polls())
    }

    /// Posts receive requests in order.
    ///
    /// # Errors
    /// The index of the first request refused, and why.
    pub fn post_recv(
        &self,
        requests: &mut dyn Iterator<Item = Result<RecvWr>>,
    ) -> std::result::Result<(), (usize, Error)> {
        let adapter = self.adapter().map_err(|error| (0, error))?;
        let mut core = self.core();
        let mut outcome = Ok(());
        for (index, request) in requests.enumerate() {
            let posted = request.and_then(|request| core.transport.post_recv(request));
            if let Err(error) = posted {
                outcome = Err((index, error));
                break;
            }
        }
        if core.transport.state() == QpState::Err {
            // Posting in the error state flushes at once.
            self.with_cx(&adapter, &mut core, |transport, cx| transport.transmit(cx));
        }
        outcome
    }

    /// Cancels the send requests of this identifier that have not begun, as
    /// [`cancel_sends`](transport::Transport::cancel_sends) of the transport does.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the send queue has drained to SQD.
    pub fn cancel_sends(&self, wr_id: u64) -> Result<usize> {
        self.core().transport.cancel_sends(wr_id)
    }

    /// Takes back the send requests that have not begun, as
    /// [`withdraw_sends`](transport::Transport::withdraw_sends) of the transport does.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless the send queue has drained to SQD.
    pub fn withdraw_sends(&self) -> Result<Vec<SendWr>> {
        self.core().transport.withdraw_sends()
    }
}

/// Whether sending `request` asks nobody for the way.
fn knows_way(request: &SendWr) -> bool {
    request
        .datagram
        .as_ref()
        .is_none_or(|to| handle_of(&*to.ah).is_some_and(|ah| ah.knows_way(to.remote_qpn)))
}

/// Finds the way for a datagram: not under a lock. What it comes to is seen when the packet goes.
fn find_way(adapter: &Adapter, request: &SendWr) {
    if let Some(to) = &request.datagram {
        let _ = handle_of(&*to.ah).map(|ah| ah.way(adapter, to.remote_qpn));
    }
}
