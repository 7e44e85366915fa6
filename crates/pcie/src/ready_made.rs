//! Ready-made platforms: machines worth having at hand, each a short file with comments.

use std::path::Path;

/// A platform file that comes with the program.
#[derive(Clone, Copy, Debug)]
pub struct ReadyMade {
    /// What `--platform` calls it.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
}

/// All of them, the default first.
pub const READY_MADE: [ReadyMade; 6] = [
    ReadyMade { name: "default", text: include_str!("platforms/default.toml") },
    ReadyMade { name: "dgx", text: include_str!("platforms/dgx.toml") },
    ReadyMade { name: "server", text: include_str!("platforms/server.toml") },
    ReadyMade { name: "old-server", text: include_str!("platforms/old-server.toml") },
    ReadyMade { name: "grace", text: include_str!("platforms/grace.toml") },
    ReadyMade { name: "cloud", text: include_str!("platforms/cloud.toml") },
];

impl ReadyMade {
    /// The one that `--platform` calls by this: a bare name. A file of that name is meant by
    /// `./NAME`.
    pub fn called(name: &Path) -> Option<ReadyMade> {
        READY_MADE.into_iter().find(|ready| name.as_os_str() == ready.name)
    }

    /// What it is: the first paragraph of the file's comment, a sentence.
    pub fn summary(&self) -> String {
        let words = self.text.lines().map_while(|line| line.strip_prefix("# "));
        words.collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinkId, MapType, Platform, Role, Route, Target, Unreachable};
    use std::sync::Arc;

    fn platform(name: &str) -> Platform {
        Platform::from_toml(ReadyMade::called(Path::new(name)).unwrap().text).unwrap()
    }

    fn route(platform: &Platform, from: &str, to: &str) -> Result<Arc<Route>, Unreachable> {
        let target = platform.named(to).unwrap().address;
        platform.route(platform.named(from).unwrap(), Target::Function(target))
    }

    #[test]
    fn each_has_an_hca_a_gpu_and_a_sentence() {
        for ready in READY_MADE {
            let platform = Platform::from_toml(ready.text)
                .unwrap_or_else(|error| panic!("{}: {error}", ready.name));
            assert!(platform.with_role(Role::Hca).count() > 0, "{}", ready.name);
            assert!(platform.with_role(Role::Gpu).count() > 0, "{}", ready.name);
            assert!(
                ready.summary().ends_with('.') && ready.summary().len() < 125,
                "{}",
                ready.name
            );
        }
        assert!(ReadyMade::called(Path::new("./dgx")).is_none());
    }

    #[test]
    fn a_near_pair_of_the_dgx_stays_in_its_switch() {
        let dgx = platform("dgx");
        let near = route(&dgx, "peerdma3", "gpu3").unwrap();
        assert_eq!((near.map_type(), near.links().len()), (MapType::BusAddr, 2));
        let far = route(&dgx, "peerdma3", "gpu4").unwrap();
        assert_eq!(far.map_type(), MapType::ThruHostBridge);
        assert!(far.links().contains(&LinkId::Sockets(0, 1)));
        assert_eq!(far.bytes_per_second(), Some(60_000_000_000), "the interconnect is narrower");
    }

    #[test]
    fn the_processors_list_decides_on_servers() {
        let listed = platform("server");
        assert_eq!(route(&listed, "peerdma0", "gpu0").unwrap().map_type(), MapType::ThruHostBridge);
        assert_eq!(route(&listed, "peerdma0", "gpu1").unwrap().map_type(), MapType::ThruHostBridge);
        let old = platform("old-server");
        assert_eq!(route(&old, "peerdma0", "gpu0").unwrap().map_type(), MapType::ThruHostBridge);
        assert_eq!(route(&old, "peerdma0", "gpu1").unwrap_err().map_type, MapType::NotSupported);
        assert!(route(&platform("cloud"), "peerdma0", "gpu0").is_err());
    }

    #[test]
    fn data_direct_avoids_the_root_complexes() {
        let grace = platform("grace");
        let crosses_root = |from| {
            let route = route(&grace, from, "gpu0").unwrap();
            route.links().iter().any(|link| matches!(link, LinkId::RootComplex(_)))
        };
        assert!(crosses_root("peerdma0"));
        assert!(!crosses_root("peerdma0_dma"));
    }
}
