//! PathRecord (IBA 15.2.5.16): the ways between ports. There is one switch, so there is one way, and all are alike.

use crate::bytes::{be16, get, put};
use crate::mask::{EXACTLY, Template};
use crate::view::{MTU, PACKET_LIFE, PKEY, RATE, View, guid_of};
use hca::subnet::gid_of_guid;

const DGID: usize = 2;
const SGID: usize = 3;
const DLID: usize = 4;
const SLID: usize = 5;
const PKEY_NAMED: usize = 13;
const SL: usize = 15;
const MTU_SELECTOR: usize = 16;
const RATE_SELECTOR: usize = 18;
const LIFE_SELECTOR: usize = 20;

const DGID_AT: usize = 8;
const SGID_AT: usize = 24;
const DLID_AT: usize = 40;
const SLID_AT: usize = 42;
const PKEY_AT: usize = 50;
const SL_AT: usize = 52;
const MTU_AT: usize = 54;
const RATE_AT: usize = 55;
const LIFE_AT: usize = 56;
/// Partition without the bit for full membership.
const PARTITION: u16 = 0x7fff;

/// One end of a path.
type End = (u16, u64);

impl View {
    /// The paths that a request wants. One that names no source means the port that asks.
    pub(crate) fn paths(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let record = wanted.record;
        let (pkey, sl) = (be16(record, PKEY_AT), be16(record, SL_AT) & 0xf);
        let fits = (!wanted.names(PKEY_NAMED) || (pkey ^ PKEY) & PARTITION == 0)
            && (!wanted.names(SL) || sl == 0)
            && wanted.selects(MTU_SELECTOR, MTU_SELECTOR + 1, MTU_AT, MTU)
            && wanted.selects(RATE_SELECTOR, RATE_SELECTOR + 1, RATE_AT, RATE)
            && wanted.selects(LIFE_SELECTOR, LIFE_SELECTOR + 1, LIFE_AT, PACKET_LIFE);
        if !fits {
            return Vec::new();
        }
        let sources = self.ends_named(wanted, (SGID, SGID_AT), (SLID, SLID_AT));
        let sources = match sources {
            Some(named) => named,
            None => self.own_port().map(|port| (port.lid, port.guid)).into_iter().collect(),
        };
        let destinations = self.ends_named(wanted, (DGID, DGID_AT), (DLID, DLID_AT));
        let destinations = destinations.unwrap_or_else(|| self.ends().collect());
        let pairs = sources.iter().flat_map(|from| destinations.iter().map(move |to| (*from, *to)));
        pairs.map(|(from, to)| path(from, to)).collect()
    }

    /// The ends that GID and LID of a request name; `None` where it names neither.
    fn ends_named(
        &self,
        wanted: &Template<'_>,
        (gid, gid_at): (usize, usize),
        (lid, lid_at): (usize, usize),
    ) -> Option<Vec<End>> {
        if !wanted.names(gid) && !wanted.names(lid) {
            return None;
        }
        let guid_wanted = guid_of(get(wanted.record, gid_at));
        let lid_wanted = be16(wanted.record, lid_at);
        let named = self.ends().filter(|(own_lid, guid)| {
            (!wanted.names(gid) || guid_wanted == Some(*guid))
                && (!wanted.names(lid) || lid_wanted == *own_lid)
        });
        Some(named.collect())
    }
}

fn path((slid, from): End, (dlid, to): End) -> Vec<u8> {
    let mut record = vec![0; 64];
    put(&mut record, DGID_AT, &gid_of_guid(to));
    put(&mut record, SGID_AT, &gid_of_guid(from));
    put(&mut record, DLID_AT, &dlid.to_be_bytes());
    put(&mut record, SLID_AT, &slid.to_be_bytes());
    record[49] = 0x80 | 1; // reversible, one path
    put(&mut record, PKEY_AT, &PKEY.to_be_bytes());
    for (at, value) in [(MTU_AT, MTU), (RATE_AT, RATE), (LIFE_AT, PACKET_LIFE)] {
        record[at] = EXACTLY << 6 | value;
    }
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;

    fn lids(paths: &[Vec<u8>]) -> Vec<(u16, u16)> {
        paths.iter().map(|path| (be16(path, SLID_AT), be16(path, DLID_AT))).collect()
    }

    #[test]
    fn a_path_is_found_by_gid_and_by_lid() {
        let view = view();
        let mut wanted = [0; 64];
        put(&mut wanted, DGID_AT, &gid_of_guid(0x90));
        put(&mut wanted, SGID_AT, &gid_of_guid(0x70));
        let by_gid = Template { mask: 1 << DGID | 1 << SGID, record: &wanted };
        let found = view.paths(&by_gid);
        assert_eq!(lids(&found), [(7, 9)]);
        assert_eq!((found[0][MTU_AT], be16(&found[0], PKEY_AT)), (EXACTLY << 6 | MTU, PKEY));
        put(&mut wanted, DLID_AT, &7_u16.to_be_bytes());
        let by_lid = Template { mask: 1 << DLID, record: &wanted };
        assert_eq!(lids(&view.paths(&by_lid)), [(7, 7)]);
        let both = Template { mask: 1 << DLID | 1 << DGID, record: &wanted };
        assert!(view.paths(&both).is_empty(), "that GID is not at that LID");
        let none = Template { mask: 0, record: &wanted };
        assert_eq!(view.paths(&none).len(), 3, "from the own port to each");
    }

    #[test]
    fn paths_that_the_subnet_has_not_are_not_told() {
        let view = view();
        let mut wanted = [0; 64];
        put(&mut wanted, DLID_AT, &9_u16.to_be_bytes());
        put(&mut wanted, PKEY_AT, &0x1234_u16.to_be_bytes());
        wanted[MTU_AT] = MTU; // greater than the largest
        let mtu = 1 << MTU_SELECTOR | 1 << (MTU_SELECTOR + 1);
        for (more, found) in [(0, 1), (1 << PKEY_NAMED, 0), (mtu, 0), (1 << MTU_SELECTOR, 1)] {
            let wanted = Template { mask: 1 << DLID | more, record: &wanted };
            assert_eq!(view.paths(&wanted).len(), found, "{more:#x}");
        }
    }
}
