//! The memory of a neighbour, which is reached without packets.

use transport::Direct;
use umem::AccessError;

/// A neighbour that notes what goes to its memory or comes from it.
#[derive(Default)]
pub struct Neighbour {
    /// Whether a WRITE, where in all of it, and how many bytes.
    pub moved: Vec<(bool, u64, usize)>,
    /// How often it was asked.
    pub asked: u32,
    /// It grants so many parts more.
    pub grants: Option<usize>,
    /// What WRITEs of inline data brought.
    pub bytes: Vec<u8>,
}

impl Neighbour {
    /// Moves a part of a request, if it still grants one.
    pub fn moves(&mut self, direct: Direct<'_>) -> bool {
        let Direct { write, remote, length, at, len, memory, .. } = direct;
        assert!(remote.rkey == 0x1234 && at + len as u64 <= u64::from(length));
        self.asked += 1;
        match &mut self.grants {
            Some(0) => return false,
            Some(more) => *more -= 1,
            None => {}
        }
        // The memory here is of no process, unless the request brought its bytes along.
        let read = memory.read(at, len, &mut |from| {
            let mut bytes = vec![0; from.len() as usize];
            from.read(&mut bytes)?;
            self.bytes.extend(bytes);
            Ok(())
        });
        assert!(write || read == Err(AccessError::Unreachable));
        self.moved.push((write, at, len));
        true
    }
}
