//! PathRecord (IBA 15.2.5.16): the ways between ports. There is one switch, so there is one way,
//! and all are alike.

use crate::view::{MTU, PACKET_LIFE, RATE, View, guid_of};
use hca::DEFAULT_PKEY;
use hca::subnet::gid_of_guid;
use wire::is_same_partition;
use wire::mad::sa::{Component, PathRecord, Template};

/// One end of a path.
type End = (u16, u64);

/// The end that a request names, and which components name it.
struct Named {
    gid: (Component, [u8; 16]),
    lid: (Component, u16),
}

impl View {
    /// The paths that a request wants. One that names no source means the port that asks.
    pub(crate) fn paths(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let asked = PathRecord::parse(wanted.record);
        let fits = (!wanted.names(PathRecord::PKEY) || is_same_partition(asked.pkey, DEFAULT_PKEY))
            && (!wanted.names(PathRecord::SL) || asked.sl == 0)
            && wanted.selects(PathRecord::MTU, MTU)
            && wanted.selects(PathRecord::RATE, RATE)
            && wanted.selects(PathRecord::PACKET_LIFE, PACKET_LIFE);
        if !fits {
            return Vec::new();
        }
        let source =
            Named { gid: (PathRecord::SGID, asked.sgid), lid: (PathRecord::SLID, asked.slid) };
        let destination =
            Named { gid: (PathRecord::DGID, asked.dgid), lid: (PathRecord::DLID, asked.dlid) };
        let sources = match self.ends_named(wanted, &source) {
            Some(named) => named,
            None => self.own_port().map(|port| (port.lid, port.guid)).into_iter().collect(),
        };
        let destinations = self.ends_named(wanted, &destination);
        let destinations = destinations.unwrap_or_else(|| self.ends().collect());
        let pairs = sources.iter().flat_map(|from| destinations.iter().map(move |to| (*from, *to)));
        pairs.map(|(from, to)| path(from, to).emit().to_vec()).collect()
    }

    /// The ends that GID and LID of a request name; `None` where it names neither.
    fn ends_named(&self, wanted: &Template<'_>, named: &Named) -> Option<Vec<End>> {
        let (by_gid, by_lid) = (wanted.names(named.gid.0), wanted.names(named.lid.0));
        if !by_gid && !by_lid {
            return None;
        }
        let guid_wanted = guid_of(named.gid.1);
        let ends = self.ends().filter(|(lid, guid)| {
            (!by_gid || guid_wanted == Some(*guid)) && (!by_lid || named.lid.1 == *lid)
        });
        Some(ends.collect())
    }
}

fn path((slid, from): End, (dlid, to): End) -> PathRecord {
    PathRecord {
        dgid: gid_of_guid(to),
        sgid: gid_of_guid(from),
        dlid,
        slid,
        reversible: true,
        count: 1,
        pkey: DEFAULT_PKEY,
        sl: 0,
        mtu: MTU,
        rate: RATE,
        packet_life: PACKET_LIFE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;

    const DGID: u64 = 1 << 2;
    const SGID: u64 = 1 << 3;
    const DLID: u64 = 1 << 4;

    fn lids(paths: &[Vec<u8>]) -> Vec<(u16, u16)> {
        let parsed = paths.iter().map(|path| PathRecord::parse(path));
        parsed.map(|path| (path.slid, path.dlid)).collect()
    }

    #[test]
    fn a_path_is_found_by_gid_and_by_lid() {
        let view = view();
        let mut wanted = PathRecord::parse(&[]);
        wanted.dgid = gid_of_guid(0x90);
        wanted.sgid = gid_of_guid(0x70);
        let found = view.paths(&Template { mask: DGID | SGID, record: &wanted.emit() });
        assert_eq!(lids(&found), [(7, 9)]);
        let path = PathRecord::parse(&found[0]);
        assert_eq!((path.mtu, path.pkey), (MTU, DEFAULT_PKEY));
        wanted.dlid = 7;
        let record = wanted.emit();
        let paths = |mask| view.paths(&Template { mask, record: &record });
        assert_eq!(lids(&paths(DLID)), [(7, 7)]);
        assert!(paths(DLID | DGID).is_empty(), "that GID is not at that LID");
        assert_eq!(paths(0).len(), 3, "from the own port to each");
    }

    #[test]
    fn paths_that_the_subnet_does_not_have_are_not_found() {
        let view = view();
        let mut wanted = PathRecord::parse(&[]);
        wanted.dlid = 9;
        wanted.pkey = 0x1234;
        let mut record = wanted.emit();
        record[PathRecord::MTU.field()].fill(MTU); // greater than the largest
        let (pkey, mtu, selector) = (1 << 13, 1 << 16 | 1 << 17, 1 << 16);
        for (more, found) in [(0, 1), (pkey, 0), (mtu, 0), (selector, 1)] {
            let wanted = Template { mask: DLID | more, record: &record };
            assert_eq!(view.paths(&wanted).len(), found, "{more:#x}");
        }
    }
}
