//! The abstract socket names by which processes find each other.
//!
//! Abstract names are scoped to the network namespace and vanish with their holder, even on
//! `kill -9`. `peerdma/<version>/<uid>` is the registry. A host that is stopped keeps its name, so
//! a process that gets no answer hosts the next *generation* under `…/g1` and so on; the highest
//! that exists is the one that counts, and a host that wakes up beneath a higher one abdicates.
//! `…/slot/<n>` is a datagram socket that the holder of slot `n` keeps: its deed. A datagram there
//! asks the holder to see whether its registry still counts and answers.
//!
//! Anybody may bind these names too. So only sockets count that the kernel lists as this user's
//! ([`census`]), and where a stranger has a name, another one does that nobody could foresee: a
//! generation some random way ahead, a deed with a random tail.

use crate::fds::{Fd, Table};
use crate::proto::VERSION;
use crate::system::census::{self, Bound, SocketFilter};
use crate::system::sys;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The first generations, which are looked for one by one where the kernel lists no names.
const LIKELY: std::ops::Range<u64> = 0..8;
/// Connections that wait for the host.
pub(crate) const BACKLOG: i32 = 1024;
/// Names tried where strangers have those before.
const ATTEMPTS: usize = 8;

/// What became of an attempt to host.
pub(crate) enum Hosting {
    Ours {
        fd: Fd,
        generation: u64,
    },
    /// Another process of this user was faster.
    Lost,
}

/// Who has a name.
enum Holder {
    /// A process of this user.
    Own,
    Stranger,
    /// Whoever had it has gone.
    Nobody,
}

/// A connection to the registry that counts.
pub(crate) struct Found {
    pub fd: Fd,
    pub generation: u64,
    /// Its host has not accepted for so long that no more connections fit.
    pub deaf: bool,
}

/// The names of one user's registry.
#[derive(Clone)]
pub(crate) struct Names {
    base: String,
    uid: u32,
    table: Arc<Table>,
}

fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) as u32
}

impl Names {
    pub(crate) fn new(suffix: Option<&str>, table: Arc<Table>) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let mut base = format!("peerdma/{VERSION}/{uid}");
        if let Some(suffix) = suffix {
            base.push('/');
            base.push_str(suffix);
        }
        Names { base, uid, table }
    }

    fn registry(&self, generation: u64) -> String {
        match generation {
            0 => self.base.clone(),
            g => format!("{}/g{g}", self.base),
        }
    }

    fn socket(&self, kind: SocketType) -> rustix::io::Result<Fd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(self.table.keep(socket_with(AddressFamily::UNIX, kind, flags, None)?))
    }

    /// A socket bound to a name, unless somebody has that.
    fn bind(&self, kind: SocketType, name: &str) -> rustix::io::Result<Option<Fd>> {
        let fd = self.socket(kind)?;
        match rustix::net::bind(&fd, &address(name)?) {
            Ok(()) => Ok(Some(fd)),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn is_own(&self, bound: &Bound) -> bool {
        !bound.connected && bound.uid.is_none_or(|uid| uid == self.uid)
    }

    /// Whose a name is that was found taken; as far as the kernel does not tell, ours.
    fn holder(&self, name: &str) -> Holder {
        let Ok(mut all) = census::names(name, SocketFilter::Any) else { return Holder::Own };
        all.retain(|bound| bound.name == name);
        if all.is_empty() {
            Holder::Nobody
        } else if all.iter().any(|bound| self.is_own(bound)) {
            Holder::Own
        } else {
            Holder::Stranger
        }
    }

    /// Generations whose sockets may be of this user, the highest first, and whether they are for
    /// certain.
    fn generations(&self) -> Vec<(u64, bool)> {
        let Ok(all) = census::names(&self.base, SocketFilter::Listening) else {
            return LIKELY.rev().map(|generation| (generation, false)).collect();
        };
        let own = all.iter().filter(|bound| self.is_own(bound));
        let mut generations: Vec<_> = own
            .filter_map(|bound| {
                let tail = bound.name.strip_prefix(&self.base)?;
                let generation = match tail {
                    "" => 0,
                    tail => tail.strip_prefix("/g")?.parse().ok()?,
                };
                Some((generation, bound.uid.is_some()))
            })
            .collect();
        generations.sort_unstable_by(|a, b| b.cmp(a));
        generations
    }

    /// The generation that counts, if any host of our user is listed.
    pub(crate) fn highest(&self) -> Option<u64> {
        self.generations().first().map(|(generation, _)| *generation)
    }

    /// Connects to one generation of this user's; `None`: nobody is there who is known to be of
    /// this user.
    fn connect(&self, generation: u64, certain: bool) -> rustix::io::Result<Option<Found>> {
        let fd = self.socket(SocketType::SEQPACKET)?;
        match rustix::net::connect(&fd, &address(&self.registry(generation))?) {
            Ok(()) => {
                let (_, uid) = sys::peer(&fd)?;
                Ok((uid == self.uid).then_some(Found { fd, generation, deaf: false }))
            }
            Err(Errno::AGAIN) => Ok(certain.then_some(Found { fd, generation, deaf: true })),
            Err(Errno::CONNREFUSED) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The registry that counts, if any of our user exists.
    pub(crate) fn find(&self) -> rustix::io::Result<Option<Found>> {
        for (generation, certain) in self.generations() {
            if let Some(found) = self.connect(generation, certain)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Whether a registry of a higher generation exists.
    pub(crate) fn is_deposed(&self, generation: u64) -> bool {
        let above = self.generations().into_iter().take_while(|(other, _)| *other > generation);
        above
            .into_iter()
            .any(|(other, certain)| certain || matches!(self.connect(other, false), Ok(Some(_))))
    }

    /// Tries to become the host of a generation, or of one ahead where strangers have its name.
    pub(crate) fn host(&self, mut generation: u64) -> rustix::io::Result<Hosting> {
        for _ in 0..ATTEMPTS {
            let name = self.registry(generation);
            if let Some(fd) = self.bind(SocketType::SEQPACKET, &name)? {
                rustix::net::listen(&fd, BACKLOG)?;
                // Another process may have gone farther ahead at the same time.
                let lost = self.is_deposed(generation);
                return Ok(if lost { Hosting::Lost } else { Hosting::Ours { fd, generation } });
            }
            match self.holder(&name) {
                Holder::Own => break,
                Holder::Nobody => {}
                Holder::Stranger => {
                    generation = generation.saturating_add(u64::from(random()) + 1);
                }
            }
        }
        Ok(Hosting::Lost)
    }

    /// The slots that have deeds of this user, with the deeds' names.
    fn deeds(&self) -> rustix::io::Result<Vec<(u16, String)>> {
        let prefix = format!("{}/slot/", self.base);
        let all = census::names(&prefix, SocketFilter::Idle)?.into_iter();
        let all = all.filter(|bound| self.is_own(bound));
        let slot = |name: &str| {
            let tail = name.strip_prefix(&prefix)?;
            tail.split('/').next()?.parse().ok()
        };
        Ok(all.filter_map(|bound| Some((slot(&bound.name)?, bound.name))).collect())
    }

    /// The deed of a slot, or `None` if somebody of this user holds it.
    pub(crate) fn deed(&self, slot: u16) -> rustix::io::Result<Option<Fd>> {
        let mut name = format!("{}/slot/{slot}", self.base);
        for _ in 0..ATTEMPTS {
            if let Some(fd) = self.bind(SocketType::DGRAM, &name)? {
                // Under another name, from when a stranger had this one.
                let others = self.deeds().unwrap_or_default();
                let held = others.iter().any(|(other, of)| *other == slot && *of != name);
                return Ok((!held).then_some(fd));
            }
            match self.holder(&name) {
                Holder::Own => break,
                Holder::Nobody => {}
                Holder::Stranger => name = format!("{}/slot/{slot}/{:x}", self.base, random()),
            }
        }
        Ok(None)
    }

    /// The slots whose deeds somebody of this user holds. The holders do not notice.
    pub(crate) fn held(&self) -> rustix::io::Result<BTreeSet<u16>> {
        Ok(self.deeds()?.into_iter().map(|(slot, _)| slot).collect())
    }

    /// Tells the holders of slots that `wanted` picks to look for the registry; returns those that
    /// exist.
    pub(crate) fn summon(&self, wanted: impl Fn(u16) -> bool) -> rustix::io::Result<Vec<u16>> {
        let from = self.socket(SocketType::DGRAM)?;
        let mut existing = BTreeSet::new();
        for (slot, name) in self.deeds()?.into_iter().filter(|(slot, _)| wanted(*slot)) {
            // One whose queue is full has been told.
            let _ = rustix::net::sendto(
                &from,
                b"look",
                rustix::net::SendFlags::NOSIGNAL,
                &address(&name)?,
            );
            existing.insert(slot);
        }
        Ok(existing.into_iter().collect())
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }
}

fn address(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}
