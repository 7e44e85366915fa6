//! What a side's library counted: the report that it appends to the file named by
//! `PEERDMA_COUNTERS` when the side ends.

use std::collections::{BTreeMap, HashMap};

/// A report: lines `NAME VALUE`, `link NAME BYTES`, `route FUNCTION TARGET MAP-TYPE READ
/// WRITTEN`, `translated` with the same.
#[derive(Default, Debug)]
pub struct Counters {
    values: HashMap<String, u64>,
    links: BTreeMap<String, u64>,
    routes: Vec<RouteBytes>,
}

/// Bytes that took a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteBytes {
    /// The function that read and wrote.
    pub function: String,
    /// What it read and wrote.
    pub target: String,
    /// How it was mapped.
    pub map_type: String,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Counters {
    /// Reads a report. Lines of another form are none of ours to judge.
    pub fn parse(text: &str) -> Counters {
        let mut counters = Counters::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("link ") {
                counters.links.extend(name_and_value(rest));
            } else if let Some(rest) =
                ["route ", "translated "].iter().find_map(|what| line.strip_prefix(what))
            {
                counters.add(route(rest));
            } else {
                counters.values.extend(name_and_value(line));
            }
        }
        counters
    }

    /// Whichever way the requests went, they are the same function's to the same target.
    fn add(&mut self, new: Option<RouteBytes>) {
        let Some(new) = new else { return };
        let same = |known: &&mut RouteBytes| {
            (&known.function, &known.target) == (&new.function, &new.target)
        };
        match self.routes.iter_mut().find(same) {
            Some(known) => {
                known.read += new.read;
                known.written += new.written;
            }
            None => self.routes.push(new),
        }
    }

    /// A counter of the device.
    pub fn value(&self, counter: hca::Counter) -> u64 {
        self.values.get(counter.name()).copied().unwrap_or(0)
    }

    /// The links that bytes crossed. The library also names those of places where a buffer could
    /// have been moved to.
    pub fn links(&self) -> impl Iterator<Item = &str> {
        self.links.iter().filter(|(_, bytes)| **bytes > 0).map(|(name, _)| name.as_str())
    }

    /// Bytes over a link; nothing crosses a link that the library does not name.
    pub fn link(&self, name: &str) -> u64 {
        self.links.get(name).copied().unwrap_or(0)
    }

    /// The route to a target, if it was taken.
    pub fn route_to(&self, target: &str) -> Option<&RouteBytes> {
        self.routes.iter().find(|route| route.target == target)
    }
}

/// The value is the last word; names may have spaces.
fn name_and_value(text: &str) -> Option<(String, u64)> {
    let (name, value) = text.rsplit_once(' ')?;
    Some((name.to_owned(), value.parse().ok()?))
}

fn route(text: &str) -> Option<RouteBytes> {
    let (function, rest) = text.split_once(' ')?;
    let mut words = rest.rsplitn(4, ' ');
    let written = words.next()?.parse().ok()?;
    let read = words.next()?.parse().ok()?;
    let (map_type, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some(RouteBytes { function: function.to_owned(), target, map_type, read, written })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_targets_may_have_spaces() {
        let counters = Counters::parse(
            "sent_pkts 3\nlink root complex 0 12\nroute 0000:18:00.0 host memory NONE 4 8\n\
             route 0000:18:00.0 0000:1a:00.0 BUS_ADDR 1 2\nroute short\nlink x y\n\
             translated 0000:18:00.0 0000:1a:00.0 BUS_ADDR 10 20\n",
        );
        assert_eq!(counters.value(hca::Counter::SentPackets), 3);
        assert_eq!(counters.value(hca::Counter::RcvdPackets), 0);
        assert_eq!(counters.link("root complex 0"), 12);
        assert_eq!(counters.link("root complex 1"), 0);
        let host = counters.route_to("host memory").unwrap();
        assert_eq!((host.map_type.as_str(), host.read, host.written), ("NONE", 4, 8));
        let gpu = counters.route_to("0000:1a:00.0").unwrap();
        assert_eq!((gpu.function.as_str(), gpu.read, gpu.written), ("0000:18:00.0", 11, 22));
        assert_eq!(counters.routes.len(), 2);
    }
}
