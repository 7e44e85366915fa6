//! Repeated blocks (PRM "Strided KLM"; `struct mlx5_wqe_umr_repeat_block_seg`): in the place of a
//! list of parts a request may give one turn of several runs of bytes, each at its own distance
//! from the one a turn before, and how many turns there are.

use crate::layout::bits::{be16, be32, be64};
use hca::KeyPart;

/// Bytes of the head, and of the description of each run.
const UNIT: usize = 16;
/// What stands in the place of a part's key to say so. No part has this key: see
/// [`crate::keys::mkey`].
pub(crate) const OPERATION: u32 = 0x400;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// Where it ends in a turn.
    end: u64,
    /// First byte in the first turn.
    addr: u64,
    lkey: u32,
    bytes: u64,
    /// Bytes from a run to the same in the next turn.
    distance: u64,
}

/// Runs, and how often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pattern {
    turns: u64,
    runs: Vec<Run>,
    /// Bytes of a turn.
    turn: u64,
}

/// The bytes do not describe what they say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("repeated blocks that contradict themselves")]
pub(crate) struct Contradiction;

impl Pattern {
    /// What a list describes, if it is of repeated blocks, of which at most `capacity` may be in a
    /// turn.
    ///
    /// # Errors
    /// [`Contradiction`] for runs that are not there, are too many, or do not add up.
    pub(crate) fn parse(list: &[u8], capacity: u64) -> Result<Option<Pattern>, Contradiction> {
        if list.len() < UNIT || be32(list, 4) != OPERATION {
            return Ok(None);
        }
        let count = usize::from(be16(list, 14));
        let end = UNIT * (count + 1);
        let runs = list.get(UNIT..end).ok_or(Contradiction)?;
        if count as u64 > capacity {
            return Err(Contradiction);
        }
        let mut turn = 0;
        let runs: Vec<Run> = runs
            .chunks_exact(UNIT)
            .map(|run| {
                let bytes = be16(run, 2).into();
                turn += bytes;
                let (addr, lkey) = (be64(run, 8), be32(run, 4));
                Run { end: turn, addr, lkey, bytes, distance: be16(run, 0).into() }
            })
            .collect();
        if turn != u64::from(be32(list, 0)) {
            return Err(Contradiction);
        }
        Ok(Some(Pattern { turns: be32(list, 8).into(), runs, turn }))
    }

    /// Bytes that it takes here.
    pub(crate) fn size(&self) -> u64 {
        (self.runs.len() * size_of::<Run>()) as u64
    }

    /// Where the byte at `offset` is, and how many follow there; `None` beyond the last turn.
    pub(crate) fn part(&self, offset: u64) -> Option<KeyPart> {
        let turn = offset.checked_div(self.turn).filter(|turn| *turn < self.turns)?;
        let within = offset % self.turn;
        let run = self.runs.get(self.runs.partition_point(|run| run.end <= within))?;
        let within = within - (run.end - run.bytes);
        let distance = turn.checked_mul(run.distance)?.checked_add(within)?;
        let addr = run.addr.checked_add(distance)?;
        Some(KeyPart { lkey: run.lkey, addr, len: run.bytes - within })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(turn: u32, turns: u32, runs: &[(u16, u16, u32, u64)]) -> Vec<u8> {
        let mut list = [turn, OPERATION, turns, runs.len() as u32].map(u32::to_be_bytes).concat();
        for (distance, bytes, key, addr) in runs {
            list.extend(distance.to_be_bytes());
            list.extend(bytes.to_be_bytes());
            list.extend(key.to_be_bytes());
            list.extend(addr.to_be_bytes());
        }
        list
    }

    #[test]
    fn runs_follow_each_other_turn_by_turn() {
        let list = list(12, 3, &[(10, 8, 5, 0x1000), (6, 4, 6, 0x2000)]);
        let pattern = Pattern::parse(&list, 2).unwrap().unwrap();
        let part = |offset| pattern.part(offset).map(|part| (part.lkey, part.addr, part.len));
        assert_eq!(part(0), Some((5, 0x1000, 8)));
        assert_eq!(part(9), Some((6, 0x2001, 3)));
        assert_eq!(part(12), Some((5, 0x100a, 8)));
        assert_eq!(part(35), Some((6, 0x200f, 1)));
        assert_eq!(part(36), None);
        assert_eq!(part(u64::MAX), None);
    }

    #[test]
    fn contradictions_are_refused_and_addresses_do_not_wrap() {
        let runs = [(10, 8, 5, u64::MAX - 20)];
        assert_eq!(Pattern::parse(&list(9, 3, &runs), 4), Err(Contradiction));
        assert_eq!(Pattern::parse(&list(8, 3, &runs), 0), Err(Contradiction));
        let mut cut = list(8, 3, &runs);
        cut.truncate(20);
        assert_eq!(Pattern::parse(&cut, 4), Err(Contradiction));
        let pattern = Pattern::parse(&list(8, u32::MAX, &runs), 4).unwrap().unwrap();
        assert_eq!(pattern.part(8).map(|part| part.addr), Some(u64::MAX - 10));
        assert_eq!(pattern.part(24), None, "it would be beyond all addresses");
        let empty = Pattern::parse(&list(0, u32::MAX, &[(0, 0, 5, 0)]), 4).unwrap().unwrap();
        assert_eq!(empty.part(0), None);
        assert_eq!(Pattern::parse(&[0; 64], 4), Ok(None));
    }
}
