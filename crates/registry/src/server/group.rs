//! The order of one reuseport group: which index of it is whose.
//!
//! The kernel appends on bind and moves the last socket into the hole when one goes
//! (`reuseport_add_sock`, `__reuseport_detach_sock`). A moved socket would miss what arrives
//! between the move and the new program, so the group keeps the socket of a member that went as a
//! *vacant* seat until it is at the end, where taking it away moves nobody. Only when more seats
//! are vacant than taken (and a few) one is given up in the middle.
//!
//! A registry that follows on a killed one does not know the order; neither does one that meets
//! sockets it did not bind. The group is then *uncertain* and is located by experiment.

use crate::Error;
use crate::server::kernel::{Family, Held, Kernel};
use crate::steer;
use std::collections::BTreeMap;

/// Vacant seats that are kept in any case.
const SPARE: usize = 16;

enum Seat<F> {
    Member {
        slot: u16,
        socket: F,
    },
    /// `of` is the slot of a member whose connection ended, which need not mean that its process
    /// has.
    Vacant {
        of: Option<u16>,
        socket: F,
    },
    Foreign {
        presumed: Option<u16>,
    },
}

impl<F> Seat<F> {
    fn socket(&self) -> Option<&F> {
        match self {
            Seat::Member { socket, .. } | Seat::Vacant { socket, .. } => Some(socket),
            Seat::Foreign { .. } => None,
        }
    }

    /// Whether nobody receives here any more. A socket can be taken out of its group, but never
    /// back in.
    fn is_dead<K: Kernel<Fd = F>>(&self, kernel: &K) -> bool {
        matches!(self, Seat::Vacant { of, .. } if !of.is_some_and(|slot| kernel.is_held(slot)))
    }

    fn is_vacant(&self) -> bool {
        matches!(self, Seat::Vacant { .. })
    }

    fn is_of(&self, of: u16) -> bool {
        matches!(self, Seat::Member { slot, .. } if *slot == of)
    }
}

/// One family's group.
pub(crate) struct Group<F> {
    family: Family,
    seats: Vec<Seat<F>>,
    /// Members whose socket the last experiment did not find.
    strays: Vec<(u16, F)>,
    certain: bool,
}

impl<F: Clone> Group<F> {
    pub(crate) fn new(family: Family) -> Self {
        Group { family, seats: Vec::new(), strays: Vec::new(), certain: false }
    }

    /// Which family's it is.
    pub(crate) fn family(&self) -> Family {
        self.family
    }

    /// Whether every index is known.
    pub(crate) fn is_certain(&self) -> bool {
        self.certain
    }

    /// Whether indices exist that no member of ours claims.
    pub(crate) fn has_foreign(&self) -> bool {
        self.seats.iter().any(|s| matches!(s, Seat::Foreign { .. }))
    }

    /// Whether a socket holds the group together.
    pub(crate) fn is_empty(&self) -> bool {
        self.seats.iter().all(|s| s.socket().is_none()) && self.strays.is_empty()
    }

    /// Seats a socket that was just bound, or that a member brought along (`known_order` false).
    pub(crate) fn admit<K: Kernel<Fd = F>>(
        &mut self,
        kernel: &K,
        slot: u16,
        socket: F,
        just_bound: bool,
    ) {
        let known = |seat: &Seat<F>| {
            seat.is_of(slot) || seat.socket().is_some_and(|s| kernel.same(s, &socket))
        };
        if !just_bound && let Some(seat) = self.seats.iter_mut().find(|s| known(s)) {
            *seat = Seat::Member { slot, socket };
            return;
        }
        for seat in &mut self.seats {
            if let Seat::Vacant { of, .. } = seat
                && *of == Some(slot)
            {
                // Whoever had the slot is gone.
                *of = None;
            }
        }
        self.strays.retain(|(stray, _)| *stray != slot);
        self.seats.push(Seat::Member { slot, socket });
        self.certain &= just_bound;
    }

    /// Takes over a socket from the host before, with the slot it serves. If that is nobody's any
    /// more, the socket is given up where it moves nobody.
    pub(crate) fn inherit<K: Kernel<Fd = F>>(&mut self, kernel: &K, (of, socket): Held<F>) {
        if self.sockets().any(|(_, s)| kernel.same(&s, &socket)) {
            return;
        }
        let of = of.filter(|slot| self.sockets().all(|(known, _)| known != Some(*slot)));
        self.seats.push(Seat::Vacant { of, socket });
        self.certain = false;
    }

    /// All sockets of ours, with the slots they serve.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = Held<F>> {
        let seats = self.seats.iter().filter_map(|seat| match seat {
            Seat::Member { slot, socket } => Some((Some(*slot), socket.clone())),
            Seat::Vacant { of, socket } => Some((*of, socket.clone())),
            Seat::Foreign { .. } => None,
        });
        seats.chain(self.strays.iter().map(|(slot, socket)| (Some(*slot), socket.clone())))
    }

    /// The member of this slot is gone; its seat stays until it can go without moving others. If it
    /// did not `leave` but its connection ended, it may come back.
    pub(crate) fn vacate<K: Kernel<Fd = F>>(&mut self, kernel: &mut K, slot: u16, leave: bool) {
        if let Some(at) = self.strays.iter().position(|(stray, _)| *stray == slot) {
            let (_, socket) = self.strays.swap_remove(at);
            if leave || !kernel.is_held(slot) {
                kernel.expel(self.family, &socket);
            }
        }
        if let Some(seat) = self.seats.iter_mut().find(|s| s.is_of(slot))
            && let Some(socket) = seat.socket().cloned()
        {
            *seat = Seat::Vacant { of: (!leave).then_some(slot), socket };
        }
        self.bury(kernel);
        if self.certain {
            self.trim(kernel);
        }
    }

    /// Seats of those that ended serve their slots no more: what still comes for these goes to the
    /// leader, who can answer it. True when there were any.
    pub(crate) fn bury<K: Kernel<Fd = F>>(&mut self, kernel: &K) -> bool {
        let mut any = false;
        for seat in &mut self.seats {
            if let Seat::Vacant { of: of @ Some(_), .. } = seat
                && of.is_some_and(|slot| !kernel.is_held(slot))
            {
                *of = None;
                any = true;
            }
        }
        any
    }

    /// Whether members went of which it is not known that they ended.
    pub(crate) fn has_missing(&self) -> bool {
        self.seats.iter().any(|seat| matches!(seat, Seat::Vacant { of: Some(_), .. }))
    }

    fn trim<K: Kernel<Fd = F>>(&mut self, kernel: &mut K) {
        while let Some(seat) = self.seats.pop_if(|s| s.is_dead(kernel)) {
            if let Some(socket) = seat.socket() {
                kernel.expel(self.family, socket);
            }
        }
        let vacant = self.seats.iter().filter(|s| s.is_vacant()).count();
        if vacant > SPARE + self.seats.len() / 2
            && let Some(at) = self.seats.iter().position(|s| s.is_dead(kernel))
            && let Some(socket) = self.seats.swap_remove(at).socket()
        {
            kernel.expel(self.family, socket);
        }
    }

    /// Checks that a socket which was just bound came where it was expected.
    pub(crate) fn verify_last<K: Kernel<Fd = F>>(&mut self, kernel: &mut K) {
        let index = self.seats.len().saturating_sub(1) as u32;
        if let Some(socket) = self.seats.last().and_then(Seat::socket)
            && kernel.are_at(self.family, &[(socket.clone(), index)]) == Some(false)
        {
            self.certain = false;
        }
    }

    /// Whether every socket of ours is still where it was found.
    pub(crate) fn holds<K: Kernel<Fd = F>>(&self, kernel: &mut K) -> bool {
        let seats = self.seats.iter().zip(0..);
        let ours: Vec<(F, u32)> =
            seats.filter_map(|(seat, index)| Some((seat.socket()?.clone(), index))).collect();
        self.strays.is_empty() && kernel.are_at(self.family, &ours) != Some(false)
    }

    /// Finds the order out by experiment, if it is uncertain.
    pub(crate) fn settle<K: Kernel<Fd = F>>(
        &mut self,
        kernel: &mut K,
        leader: Option<u16>,
        services: &BTreeMap<u64, u16>,
    ) {
        self.bury(kernel);
        if self.certain || self.is_empty() {
            return;
        }
        self.locate(kernel);
        if !self.strays.is_empty() {
            // Without our program nothing answers to probes: attach what is known and try once
            // more.
            let sockets: Vec<F> = self.strays.iter().map(|(_, s)| s.clone()).collect();
            for socket in sockets.iter().take(1) {
                let _ = kernel.steer(socket, &self.program(leader, services));
            }
            self.locate(kernel);
        }
        if self.certain {
            self.trim(kernel);
        }
    }

    fn locate<K: Kernel<Fd = F>>(&mut self, kernel: &mut K) {
        let strays = self.strays.drain(..);
        let strays = strays.map(|(slot, socket)| Seat::Member { slot, socket });
        self.seats.extend(strays);
        self.seats.retain(|s| s.socket().is_some());
        let sockets: Vec<F> = self.seats.iter().filter_map(|s| s.socket().cloned()).collect();
        let Some(order) = kernel.locate(self.family, &sockets) else {
            // The order of joining is the best guess, and there is no way to a better one.
            self.certain = true;
            return;
        };
        let mut known: Vec<Option<Seat<F>>> = self.seats.drain(..).map(Some).collect();
        self.seats = order
            .into_iter()
            .map(|found| {
                found
                    .and_then(|i| known.get_mut(i)?.take())
                    .unwrap_or(Seat::Foreign { presumed: None })
            })
            .collect();
        for seat in known.into_iter().flatten() {
            match seat {
                Seat::Member { slot, socket } => self.strays.push((slot, socket)),
                Seat::Vacant { of, socket } => {
                    if !of.is_some_and(|slot| kernel.is_held(slot)) {
                        kernel.expel(self.family, &socket);
                    }
                }
                Seat::Foreign { .. } => {}
            }
        }
        self.certain = self.strays.is_empty() && !self.has_foreign();
    }

    /// Gives the one unknown index to the one process that has not come back, if it is one and one.
    pub(crate) fn presume(&mut self, absentees: &[u16]) {
        let mut foreign: Vec<&mut Option<u16>> = self
            .seats
            .iter_mut()
            .filter_map(|s| match s {
                Seat::Foreign { presumed } => Some(presumed),
                _ => None,
            })
            .collect();
        if let ([presumed], [slot]) = (foreign.as_mut_slice(), absentees) {
            **presumed = Some(*slot);
        }
    }

    /// Index of each slot.
    pub(crate) fn map(&self) -> BTreeMap<u16, u32> {
        let indexed = self.seats.iter().zip(0_u32..);
        indexed
            .filter_map(|(seat, index)| match seat {
                Seat::Member { slot, .. }
                | Seat::Vacant { of: Some(slot), .. }
                | Seat::Foreign { presumed: Some(slot) } => Some((*slot, index)),
                _ => None,
            })
            .collect()
    }

    fn index_of(&self, slot: Option<u16>) -> u32 {
        slot.and_then(|s| self.map().get(&s).copied()).unwrap_or(0)
    }

    /// The program for the order as it is.
    pub(crate) fn program(
        &self,
        leader: Option<u16>,
        services: &BTreeMap<u64, u16>,
    ) -> Vec<steer::Insn> {
        let leader = self.index_of(leader);
        let v6 = self.family == Family::V6;
        steer::program(steer::Plan { map: &self.map(), leader, services, v6 })
    }

    /// Attaches it.
    pub(crate) fn steer<K: Kernel<Fd = F>>(
        &self,
        kernel: &mut K,
        leader: Option<u16>,
        services: &BTreeMap<u64, u16>,
    ) -> Result<(), Error> {
        let Some(via) = self.seats.iter().find_map(Seat::socket) else { return Ok(()) };
        kernel.steer(via, &self.program(leader, services))
    }
}
