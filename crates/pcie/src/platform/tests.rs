use super::*;
use crate::MapType;
use std::collections::HashMap;

fn route(platform: &Platform, from: &str, to: &str) -> Result<Arc<Route>, Unreachable> {
    let target = platform.named(to).expect("a function of the default platform").address;
    platform.route(platform.named(from).unwrap(), Target::Function(target))
}

fn text(route: &Route) -> Vec<String> {
    route.links().iter().map(LinkId::to_string).collect()
}

#[test]
fn the_near_gpu_is_reached_through_the_switch() {
    let platform = Platform::default();
    let near = route(&platform, "peerdma0", "gpu0").unwrap();
    assert_eq!((near.map_type(), near.distance()), (MapType::BusAddr, 4));
    assert_eq!(text(&near), ["link below 0000:17:00.0", "link below 0000:17:02.0"]);
    assert_eq!(near.bytes_per_second(), Some(63_015_384_615));
}

#[test]
fn only_regular_files_of_some_length_are_read() {
    let folder = std::env::temp_dir().join(format!("peerdma-platform-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let long = folder.join("long.toml");
    std::fs::File::create(&long).unwrap().set_len(LONGEST + 1).unwrap();
    let fine = folder.join("fine.toml");
    std::fs::write(&fine, include_str!("../platforms/default.toml")).unwrap();
    let said =
        |path: &Path| Platform::load(path).map_or_else(|error| error.to_string(), |_| "".into());
    for (path, expected) in [
        (long.as_path(), "platform file: it is longer than 4 MiB"),
        (folder.as_path(), "platform file: it is not a regular file"),
        (Path::new("/dev/null"), "platform file: it is not a regular file"),
        (Path::new("/nonexistent"), "platform file: No such file or directory (os error 2)"),
        (fine.as_path(), ""),
    ] {
        assert_eq!(said(path), expected, "{}", path.display());
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_platform_has_no_more_functions_than_can_be_compared() {
    let port = |number: usize| {
        let (bus, device) = (number >> 5, number & 31);
        let address = format!("{:04x}:{:02x}:{device:02x}.0", bus >> 8, bus & 0xff);
        format!("[[port]]\naddress = \"{address}\"\nkind = \"root-port\"\nbelow = \"h\"\n")
    };
    let ports: String = (0..=file::MOST_FUNCTIONS).map(port).collect();
    let error =
        Platform::from_toml(&format!("[[host_bridge]]\nname = \"h\"\n{ports}")).unwrap_err();
    assert_eq!(error.to_string(), "platform file: more than 16384 ports and functions");
}

/// Redirected requests go up to the root complex; translated ones need not, port by port.
#[test]
fn translated_requests_pass_where_acs_lets_them() {
    let text = include_str!("../platforms/default.toml");
    let with = |acs: &str| {
        let port = |address: &str| format!("address = \"{address}\"");
        ["0000:17:00.0", "0000:17:02.0"].iter().fold(text.to_owned(), |text, address| {
            let (before, after) = text.split_once(&port(address)).unwrap();
            let after = after.replacen("acs = []", &format!("acs = {acs}"), 1);
            format!("{before}{}{after}", port(address))
        })
    };
    let find = |text: &str| {
        let platform = Platform::from_toml(text).unwrap();
        let target = Target::Function(platform.named("gpu0").unwrap().address);
        let hca = platform.named("peerdma0").unwrap();
        let plain = platform.route(hca, target).unwrap();
        let translated = platform.translated_route(hca, target);
        let again = platform.translated_route(hca, target);
        assert_eq!(translated.as_ref().map(Arc::as_ptr), again.as_ref().map(Arc::as_ptr));
        if let Some(translated) = &translated {
            translated.count_read(5);
            assert!(platform.link_bytes().iter().any(|(_, bytes)| *bytes == 5));
            assert_eq!(translated.map_type(), plain.map_type());
        }
        (plain.links().len(), translated.map(|route| route.links().len()))
    };
    assert_eq!(find(text), (2, None), "nothing is redirected");
    for (acs, translated) in [
        (r#"["RR", "CR"]"#, None),
        (r#"["RR", "CR", "DT"]"#, Some(2)),
        (r#"["EC"]"#, None),
        (r#"["EC", "DT"]"#, Some(2)),
        (r#"["CR"]"#, Some(2)),
    ] {
        assert_eq!(find(&with(acs)), (5, translated), "{acs}");
    }
    let one_port = with(r#"["RR", "DT"]"#).replacen(r#""RR", "DT""#, r#""RR""#, 1);
    assert_eq!(find(&one_port), (5, None), "one port sends them up");
    let without = with(r#"["RR", "CR", "DT"]"#).replace("ats = true", "ats = false");
    assert_eq!(find(&without), (5, None), "no translated requests");
}

#[test]
fn the_far_gpu_is_reached_through_both_root_complexes() {
    let platform = Platform::default();
    let far = route(&platform, "peerdma0", "gpu1").unwrap();
    assert_eq!(far.map_type(), MapType::ThruHostBridge);
    assert_eq!(
        text(&far),
        [
            "link below 0000:17:00.0",
            "link below 0000:15:01.0",
            "root complex 0",
            "interconnect node 0 - node 1",
            "root complex 1",
            "link below 0000:97:01.0"
        ]
    );
}

#[test]
fn an_hca_and_its_data_direct_function_find_each_other_by_the_vuid() {
    let text = include_str!("../platforms/default.toml");
    let of = |text: &str| {
        let platform = Platform::from_toml(text).unwrap();
        let hca = platform.named("peerdma0").unwrap();
        (platform.data_direct_of(hca).is_some(), hca.data_direct)
    };
    let entry =
        |field: &str| text.replace("of = \"peerdma0\"", &format!("of = \"peerdma0\"\n{field}"));
    assert_eq!(of(text), (true, Some(true)));
    assert_eq!(of(&entry("vuid = \"another\"")), (false, Some(true)));
    assert_eq!(of(&entry("vuid = \"peerdma-peerdma0\"")), (true, Some(true)));
    let incapable = text.replace("# data_direct = false", "data_direct = false");
    assert_eq!(of(&incapable), (true, Some(false)));
    let error = Platform::from_toml(&entry("data_direct = true")).unwrap_err().to_string();
    assert!(error.contains("peerdma0_dma"), "{error}");
    let on_gpu = text.replace("name = \"gpu0\"", "name = \"gpu0\"\nvuid = \"x\"");
    assert!(Platform::from_toml(&on_gpu).is_err());
}

#[test]
fn host_memory_is_ordinary_dma() {
    let platform = Platform::default();
    let hca = platform.named("peerdma0").unwrap();
    let host = platform.route(hca, Target::HOST).unwrap();
    assert_eq!(host.map_type(), MapType::None);
    assert_eq!(
        text(&host),
        ["link below 0000:17:00.0", "link below 0000:15:01.0", "root complex 0"]
    );
    let other = platform.route(hca, Target::Host { numa_node: Some(1) }).unwrap();
    assert_eq!(text(&other).last().unwrap(), "interconnect node 0 - node 1");
}

#[test]
fn acs_redirect_in_the_file_changes_the_route() {
    let before = include_str!("../platforms/default.toml");
    let at = before.find("0000:17:00.0").unwrap();
    let text_with = format!(
        "{}{}",
        &before[..at],
        before[at..].replacen("acs = []", "acs = [\"SV\", \"RR\"]", 1)
    );
    let platform = Platform::from_toml(&text_with).unwrap();
    let near = route(&platform, "peerdma0", "gpu0").unwrap();
    assert_eq!(near.map_type(), MapType::ThruHostBridge);
    assert_eq!(
        text(&near),
        [
            "link below 0000:17:00.0",
            "link below 0000:15:01.0",
            "root complex 0",
            "link below 0000:15:01.0",
            "link below 0000:17:02.0"
        ]
    );
    // and with a host bridge that is not listed there is no way at all
    let unlisted = Platform::from_toml(&text_with.replace("8086:09a2", "8086:1234")).unwrap();
    let error = route(&unlisted, "peerdma0", "gpu0").unwrap_err().to_string();
    assert!(error.contains("NOT_SUPPORTED") && error.contains("8086:1234"), "{error}");
    assert!(error.contains("pci=disable_acs_redir=0000:17:00.0"), "{error}");
}

#[test]
fn bytes_are_counted_per_route_and_link() {
    let platform = Platform::default();
    let (near, far) = (
        route(&platform, "peerdma0", "gpu0").unwrap(),
        route(&platform, "peerdma0", "gpu1").unwrap(),
    );
    near.count_read(100);
    route(&platform, "peerdma0", "gpu0").unwrap().count_written(20);
    far.count_written(3);
    assert_eq!((near.read_bytes(), near.written_bytes()), (100, 20));
    let bytes: HashMap<LinkId, u64> = platform.link_bytes().into_iter().collect();
    assert_eq!(bytes[&LinkId::Below("0000:17:00.0".parse().unwrap())], 123);
    assert_eq!(bytes[&LinkId::Below("0000:17:02.0".parse().unwrap())], 120);
    assert_eq!(bytes[&LinkId::RootComplex(0)], 3);
}

#[test]
fn an_hca_has_the_ports_that_the_file_says() {
    let good = include_str!("../platforms/default.toml");
    assert_eq!(Platform::default().named("peerdma0").unwrap().ports, 1);
    let many = good.replacen("role = \"hca\"", "role = \"hca\"\nports = 300", 1);
    assert_eq!(Platform::from_toml(&many).unwrap().named("peerdma0").unwrap().ports, 300);
}

#[test]
fn roles_and_names() {
    let platform = Platform::default();
    let hca = platform.with_role(Role::Hca).next().unwrap();
    assert_eq!(hca.name, "peerdma0");
    assert_eq!(platform.data_direct_of(hca).unwrap().name, "peerdma0_dma");
    assert_eq!(platform.with_role(Role::Gpu).count(), 2);
}

#[test]
fn bad_files_are_refused_with_the_reason() {
    let good = include_str!("../platforms/default.toml");
    for (from, to, reason) in [
        ("\"socket0\"\nlink", "\"socket9\"\nlink", "neither a host bridge"),
        ("below = \"0000:16:00.0\"", "below = \"0000:77:00.0\"", "does not exist"),
        ("below = \"0000:16:00.0\"", "below = \"0000:17:00.0\"", "itself"),
        ("below = \"0000:17:02.0\"", "below = \"0000:18:00.0\"", "endpoint"),
        ("acs = []", "acs = [\"XX\"]", "ACS bit"),
        ("8086:09a2", "8086", "not an id"),
        ("width = 16", "width = 0", "0 lanes"),
        ("address = \"0000:17:01.0\"", "address = \"0000:17:00.0\"", "twice"),
        ("address = \"0000:17:01.0\"", "address = \"17\"", "not a PCI address"),
        ("of = \"peerdma0\"", "of = \"mlx5_0\"", "HCA"),
        ("ats = true", "atz = true", "unknown field"),
        ("role = \"hca\"", "role = \"hca\"\nports = 0", "1 to 1024"),
        ("role = \"hca\"", "role = \"hca\"\nports = 1025", "1 to 1024"),
        ("role = \"gpu\"", "role = \"gpu\"\nports = 2", "1 to 1024"),
        ("name = \"gpu1\"", "name = \"gpu0\"", "twice"),
        ("role = \"hca\"", "role = \"hca\"\ninterfaces = []", "at least one"),
        ("role = \"gpu\"", "role = \"gpu\"\ninterfaces = [\"eth0\"]", "others none"),
        ("name = \"peerdma0\"", "name = \"a/b\"", "cannot be called"),
        ("name = \"peerdma0\"", "name = \"..\"", "cannot be called"),
        ("name = \"socket1\"", "name = \"socket0\"", "twice"),
        ("kind = \"switch-upstream\"", "kind = \"endpoint\"", "endpoint"),
    ] {
        let text = good.replacen(from, to, 1);
        assert_ne!(text, good, "{from} does not occur");
        let error = Platform::from_toml(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{from} -> {to}: {error}");
    }
}
