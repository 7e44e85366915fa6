//! Where a QP's packets go, and a neighbour that its requests may reach without any.

use super::Packet;
use std::time::Instant;
use transport::{Direct, DirectGroup, Fill, To, Tx};
use umem::{AccessError, Fold};
use wire::Headers;

/// A neighbour that notes what goes to its memory or comes from it.
#[derive(Default)]
pub struct Neighbour {
    /// Whether a WRITE, where in all of it, and how many bytes.
    pub moved: Vec<(bool, u64, usize)>,
    /// It grants so many parts more.
    pub grants: Option<usize>,
    /// What WRITEs of inline data brought.
    pub bytes: Vec<u8>,
}

/// Emitted packets, in order, and emitted frames, at a port.
pub struct Outbox {
    pub neighbour: Option<Neighbour>,
    pub packets: Vec<Packet>,
    pub frames: Vec<Vec<u8>>,
    pub port_mtu: u32,
    /// Bytes that the peer's port has room for, where it is known.
    pub room: Option<u64>,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox {
            neighbour: None,
            packets: Vec::new(),
            frames: Vec::new(),
            port_mtu: 4096,
            room: None,
        }
    }
}

impl Tx for Outbox {
    fn port_mtu(&self) -> u32 {
        self.port_mtu
    }

    fn packet(
        &mut self,
        _to: To<'_>,
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<(), AccessError> {
        let mut payload = vec![0; payload_len];
        fill(&mut payload, &mut Fold::off())?;
        self.packets.push(Packet { headers: *headers, payload });
        Ok(())
    }

    fn frame(&mut self, len: usize, fill: &mut Fill<'_>) -> Result<(), AccessError> {
        let mut frame = vec![0; len];
        fill(&mut frame, &mut Fold::off())?;
        self.frames.push(frame);
        Ok(())
    }

    fn has_neighbour(&self) -> bool {
        self.neighbour.is_some()
    }

    fn direct(&mut self, direct: Direct<'_>) -> bool {
        let Some(neighbour) = &mut self.neighbour else { return false };
        let Direct { write, remote, length, at, len, memory, .. } = direct;
        assert!(remote.rkey == 0x1234 && at + len as u64 <= u64::from(length));
        match &mut neighbour.grants {
            Some(0) => return false,
            Some(more) => *more -= 1,
            None => {}
        }
        // The memory here is of no process, unless the request brought its bytes along.
        let read = memory.read(at, len, &mut |from| {
            let mut bytes = vec![0; from.len() as usize];
            from.read(&mut bytes)?;
            neighbour.bytes.extend(bytes);
            Ok(())
        });
        assert!(write || read == Err(AccessError::Unreachable));
        neighbour.moved.push((write, at, len));
        true
    }

    fn direct_group(&mut self, group: &DirectGroup<'_>) -> usize {
        let Some(neighbour) = &mut self.neighbour else { return 0 };
        let granted = neighbour.grants.unwrap_or(usize::MAX).min(group.places.len());
        let mut at = 0;
        for (remote, len) in &group.places[..granted] {
            assert_eq!(remote.rkey, 0x1234);
            neighbour.moved.push((true, at as u64, *len));
            neighbour.bytes.extend(&group.bytes[at..at + len]);
            at += len;
        }
        neighbour.grants = neighbour.grants.map(|grants| grants - granted);
        assert_eq!(group.whole(at), granted);
        granted
    }

    fn room(&mut self, _to: To<'_>, _dest_qpn: u32, bytes: u64, _now: Instant) -> Option<bool> {
        let room = self.room.as_mut()?;
        let left = room.checked_sub(bytes);
        *room = left.unwrap_or(*room);
        Some(left.is_some())
    }
}
