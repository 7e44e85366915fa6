//! What a send request must keep to before it is taken into the queue.

use crate::error::{Error, Result};
use crate::values::*;
use wire::ethernet;

/// Longest frame in bytes. What an interface carries is less; longer ones are lost on the way, as
/// on a NIC.
pub(crate) const MAX_FRAME: u32 = 1 << 16;

/// Whether a request of `length` bytes is a frame.
fn check_frame(length: u64) -> Result<()> {
    if length < ethernet::HEADER_LEN as u64 {
        return Err(Error::Invalid("a raw packet begins with an Ethernet header"));
    }
    if length > MAX_FRAME.into() {
        return Err(Error::Invalid("a raw packet is longer than any frame"));
    }
    Ok(())
}

/// What a queue pair takes.
pub(crate) struct Offer<'a> {
    pub(crate) kind: QpType,
    pub(crate) cap: &'a QpCap,
    pub(crate) port: u8,
    /// There is somebody who does [`SendOp::Custom`].
    pub(crate) custom: bool,
}

impl Offer<'_> {
    /// Checks `wr`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an operation that the service does not offer, and for a request that
    /// breaks a limit.
    pub(crate) fn check(&self, wr: &SendWr) -> Result<()> {
        let offered = match (self.kind, &wr.op) {
            (QpType::Rc | QpType::XrcSend, _) => true,
            (QpType::XrcRecv, _) => false,
            (QpType::Uc, op) => matches!(
                op,
                SendOp::Send
                    | SendOp::SendImm(_)
                    | SendOp::Write(_)
                    | SendOp::WriteImm(..)
                    | SendOp::LocalInvalidate(_)
                    | SendOp::BindMw(_)
                    | SendOp::Custom(_)
            ),
            (QpType::Ud, op) => {
                matches!(op, SendOp::Send | SendOp::SendImm(_) | SendOp::Custom(_))
            }
            (QpType::RawPacket, op) => matches!(op, SendOp::Send),
        };
        if !offered || (matches!(wr.op, SendOp::Custom(_)) && !self.custom) {
            return Err(Error::Invalid("the service does not offer the operation"));
        }
        if wr.flags.contains(SendFlags::IP_CSUM) || !SendFlags::all().contains(wr.flags) {
            return Err(Error::Invalid("a send flag that the QP does not offer"));
        }
        let length = match &wr.payload {
            Payload::Inline(bytes) => {
                if matches!(
                    wr.op,
                    SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }
                ) {
                    return Err(Error::Invalid("READs and atomics cannot be inline"));
                }
                // An ATOMIC WRITE takes its value along however little the QP has room for.
                let granted = matches!(wr.op, SendOp::AtomicWrite(_));
                if bytes.len() > self.cap.max_inline_data as usize && !granted {
                    return Err(Error::Invalid("more inline data than the QP allows"));
                }
                bytes.len() as u64
            }
            Payload::Gather(list) => {
                if list.len() > self.cap.max_send_sge as usize {
                    return Err(Error::Invalid("more scatter/gather entries than the QP allows"));
                }
                total_length(list)
            }
        };
        if length > MAX_MESSAGE.into() {
            return Err(Error::Invalid("a message is longer than 2^31 bytes"));
        }
        check_placement(&wr.op, length)?;
        match (self.kind, &wr.datagram) {
            (QpType::Ud, None) if matches!(wr.op, SendOp::Custom(_)) => Ok(()),
            (QpType::Ud, None) => Err(Error::Invalid("a datagram needs a destination")),
            // What IBV_DEVICE_UD_AV_PORT_ENFORCE promises (IBA 10.2.2.2).
            (QpType::Ud, Some(to)) if to.ah.attr().port_num != self.port => {
                Err(Error::Invalid("the address handle is of another port than the QP"))
            }
            (QpType::RawPacket, _) => check_frame(length),
            _ => Ok(()),
        }
    }
}

/// What ATOMIC WRITE and FLUSH must keep to (IBA A19).
fn check_placement(op: &SendOp, length: u64) -> Result<()> {
    match op {
        SendOp::AtomicWrite(remote) if length != 8 || !remote.addr.is_multiple_of(8) => {
            Err(Error::Invalid("ATOMIC WRITE writes 8 aligned bytes"))
        }
        SendOp::Flush(flush) if !(1..=3).contains(&flush.placement) || flush.len > MAX_MESSAGE => {
            Err(Error::Invalid("FLUSH of an unknown placement, or of more than 2^31 bytes"))
        }
        _ => Ok(()),
    }
}
