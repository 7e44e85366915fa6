//! A platform: the machine that software devices live in, read from a small TOML file (`platforms/default.toml` shows the form).

use crate::machine::{
    Acs, AcsBits, Below, Cpu, Function, HostBridge, Kind, Machine, Role, TreeError,
};
use crate::pace::Pacer;
use crate::route::{Route, Target, Unreachable, find, find_translated};
use crate::{Address, Link, LinkId, ReadyMade, RouteTable};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a platform file was refused.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// The file could not be read.
    #[error("platform file: {0}")]
    Read(#[from] std::io::Error),
    /// It is not TOML of the documented form; says where.
    #[error("platform file: {0}")]
    Form(#[from] toml::de::Error),
    /// Its functions do not form a tree.
    #[error("platform file: {0}")]
    Tree(#[from] TreeError),
    /// A value is wrong.
    #[error("platform file: {0}")]
    Value(String),
}

/// The machine and the routes taken in it so far. Share it by `Arc`: its routes carry the byte counters.
#[derive(Debug)]
pub struct Platform {
    machine: Machine,
    routes: Mutex<Routes>,
}

/// The routes handed out, and the functions whose routes other processes may see.
#[derive(Debug, Default)]
struct Routes {
    found: HashMap<(Address, Target), Arc<Route>>,
    /// Those of translated requests that take another way; `None` where none is.
    translated: HashMap<(Address, Target), Option<Arc<Route>>>,
    published: HashMap<Address, Arc<RouteTable>>,
    pacer: Option<Pacer>,
}

impl Default for Platform {
    /// The embedded platform: `peerdma0` with its Data Direct function, `gpu0` behind the same switch, `gpu1` on the
    /// other socket.
    fn default() -> Platform {
        Platform::from_toml(include_str!("platforms/default.toml"))
            .expect("the embedded file is tested")
    }
}

impl Platform {
    /// A platform around a machine.
    pub fn new(machine: Machine) -> Platform {
        Platform { machine, routes: Mutex::default() }
    }

    /// Reads a platform file's text.
    pub fn from_toml(text: &str) -> Result<Platform, PlatformError> {
        toml::from_str::<File>(text)?.machine().map(Platform::new)
    }

    /// The ready-made platform of this name, or the platform file of this path.
    pub fn load(name_or_path: &Path) -> Result<Platform, PlatformError> {
        match ReadyMade::called(name_or_path) {
            Some(ready) => Platform::from_toml(ready.text),
            None => Platform::from_toml(&std::fs::read_to_string(name_or_path)?),
        }
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Functions of a role, in order of their address.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Function> {
        self.machine.functions().filter(move |f| f.role == role)
    }

    /// The function of a name.
    pub fn named(&self, name: &str) -> Option<&Function> {
        self.machine.functions().find(|f| f.name == name)
    }

    /// The Data Direct function of an HCA: the one with its VUID.
    pub fn data_direct_of(&self, hca: &Function) -> Option<&Function> {
        self.with_role(Role::DataDirect).find(|f| f.vuid.is_some() && f.vuid == hca.vuid)
    }

    /// How `function` reaches `target`. The same pair always gets the same route, which counts its bytes.
    pub fn route(&self, function: &Function, target: Target) -> Result<Arc<Route>, Unreachable> {
        let mut routes = self.locked();
        if let Some(route) = routes.found.get(&(function.address, target)) {
            return Ok(route.clone());
        }
        let route = find(&self.machine, function, target)?;
        let route = self.prepare(route, function, &mut routes);
        routes.found.insert((function.address, target), route.clone());
        Ok(route)
    }

    /// How translated requests of `function` reach `target`, if it has ATS and ACS lets them take a shorter way than
    /// [`Platform::route`]: they are told apart by their address type, and need relaxed ordering.
    pub fn translated_route(&self, function: &Function, target: Target) -> Option<Arc<Route>> {
        let mut routes = self.locked();
        if let Some(known) = routes.translated.get(&(function.address, target)) {
            return known.clone();
        }
        let route = find_translated(&self.machine, function, target)
            .map(|route| self.prepare(route, function, &mut routes));
        routes.translated.insert((function.address, target), route.clone());
        route
    }

    /// Publishes and paces a new route, if routes are.
    fn prepare(&self, mut route: Route, function: &Function, routes: &mut Routes) -> Arc<Route> {
        if let Some(table) = routes.published.get(&function.address) {
            route.publish(&self.machine, table);
        }
        if let Some(pacer) = &mut routes.pacer {
            route.pace(&self.machine, pacer);
        }
        Arc::new(route)
    }

    /// Paces links whose rate is known to this fraction of it, for routes handed out from now on: [`crate::owed`] says how long
    /// to hold back. Not paced unless asked.
    pub fn pace(&self, fraction: f64) {
        self.locked().pacer = Some(Pacer::new(fraction));
    }

    /// Lets other processes see the routes of a function that are handed out from now on. Its routes so far are forgotten
    /// with their bytes: a device that is opened again begins at nought.
    pub fn publish(&self, function: Address, table: Arc<RouteTable>) {
        let mut routes = self.locked();
        routes.found.retain(|(of, _), _| *of != function);
        routes.translated.retain(|(of, _), _| *of != function);
        routes.published.insert(function, table);
    }

    fn locked(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All routes handed out so far.
    pub fn routes(&self) -> Vec<Arc<Route>> {
        let routes = self.locked();
        routes.found.values().chain(routes.translated.values().flatten()).cloned().collect()
    }

    /// Bytes that crossed each link, in both directions. A route that crosses a link twice counts twice.
    pub fn link_bytes(&self) -> Vec<(LinkId, u64)> {
        sum_by_link(&self.routes())
    }

    /// The same of what these functions moved.
    pub fn link_bytes_of(&self, functions: &[Address]) -> Vec<(LinkId, u64)> {
        let mut routes = self.routes();
        routes.retain(|route| route.function().is_some_and(|of| functions.contains(&of)));
        sum_by_link(&routes)
    }
}

fn sum_by_link(routes: &[Arc<Route>]) -> Vec<(LinkId, u64)> {
    let mut bytes = std::collections::BTreeMap::new();
    for route in routes {
        for link in route.links() {
            *bytes.entry(*link).or_insert(0u64) += route.read_bytes() + route.written_bytes();
        }
    }
    bytes.into_iter().collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cpu: Option<Cpu>,
    host_bridge: Vec<HostEntry>,
    #[serde(default)]
    port: Vec<PortEntry>,
    #[serde(default)]
    function: Vec<FunctionEntry>,
    #[serde(default)]
    interconnect: Vec<InterconnectEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    numa_node: Option<u32>,
    root_device: Option<String>,
    bytes_per_second: Option<u64>,
}

/// What is between the sockets of two NUMA nodes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InterconnectEntry {
    nodes: [u32; 2],
    bytes_per_second: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortEntry {
    address: Address,
    kind: Kind,
    below: String,
    id: Option<String>,
    link: Option<Link>,
    acs: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FunctionEntry {
    name: String,
    role: Role,
    of: Option<String>,
    address: Address,
    below: String,
    id: String,
    class: u32,
    acs: Option<Vec<String>>,
    ats: Option<bool>,
    ports: Option<u32>,
    vuid: Option<String>,
    data_direct: Option<bool>,
    interfaces: Option<Vec<String>>,
    memory_bytes: Option<u64>,
    bar_bytes: Option<u64>,
}

impl File {
    fn machine(self) -> Result<Machine, PlatformError> {
        let mut hosts = Vec::new();
        let mut rates = Vec::new();
        for InterconnectEntry { nodes: [a, b], bytes_per_second } in self.interconnect {
            rates.push((LinkId::Sockets(a.min(b), a.max(b)), bytes_per_second));
        }
        for host in self.host_bridge {
            if hosts.iter().any(|h: &HostBridge| h.name == host.name) {
                return Err(PlatformError::Value(format!(
                    "host bridge {:?} appears twice",
                    host.name
                )));
            }
            let root_device = host.root_device.as_deref().map(id).transpose()?;
            rates
                .extend(host.bytes_per_second.map(|rate| (LinkId::RootComplex(hosts.len()), rate)));
            hosts.push(HostBridge {
                name: host.name,
                shown: crate::Shown::Bridges,
                numa_node: host.numa_node,
                root_device,
            });
        }
        let below = |text: &str| match hosts.iter().position(|h| h.name == text) {
            Some(host) => Ok(Below::Host(host)),
            None => text.parse().map(Below::Port).map_err(|_| {
                PlatformError::Value(format!(
                    "below = {text:?} is neither a host bridge nor a PCI address"
                ))
            }),
        };
        let mut functions = Vec::new();
        for port in self.port {
            if port.kind == Kind::Endpoint {
                return Err(PlatformError::Value(format!(
                    "port {} cannot be an endpoint",
                    port.address
                )));
            }
            functions.push(Function {
                id: Some(id(port.id.as_deref().unwrap_or("f0f0:0010"))?),
                class: Some(0x06_04_00),
                link: port.link,
                acs: acs(port.acs)?,
                ..Function::new(port.address, port.kind, below(&port.below)?)
            });
        }
        for entry in self.function {
            if functions.iter().any(|f| f.name == entry.name) {
                return Err(PlatformError::Value(format!(
                    "function {:?} appears twice",
                    entry.name
                )));
            }
            if entry.role == Role::Hca && !is_device_name(&entry.name) {
                return Err(PlatformError::Value(format!(
                    "an HCA cannot be called {:?}: 1 to {MAX_NAME_BYTES} letters, digits or any of _-.",
                    entry.name
                )));
            }
            let ports = ports(&entry)?;
            let (vuid, data_direct) = (vuid(&entry)?, data_direct(&entry)?);
            let interfaces = interfaces(&entry)?;
            functions.push(Function {
                name: entry.name,
                role: entry.role,
                of: entry.of,
                id: Some(id(&entry.id)?),
                class: Some(entry.class),
                acs: acs(entry.acs)?,
                ats: entry.ats,
                ports,
                vuid,
                data_direct,
                interfaces,
                memory_bytes: entry.memory_bytes,
                bar_bytes: entry.bar_bytes,
                ..Function::new(entry.address, Kind::Endpoint, below(&entry.below)?)
            });
        }
        for function in functions.iter().filter(|f| f.role == Role::DataDirect) {
            let hca = functions
                .iter()
                .any(|f| f.role == Role::Hca && Some(&f.name) == function.of.as_ref());
            if !hca {
                let name = &function.name;
                return Err(PlatformError::Value(format!(
                    "data-direct function {name:?} needs of = an HCA's name"
                )));
            }
        }
        if let Some((hop, _)) = rates.iter().find(|(_, rate)| *rate == 0) {
            return Err(PlatformError::Value(format!("bytes_per_second of {hop} is 0")));
        }
        let mut machine = Machine::new(self.cpu, hosts, functions)?;
        for (hop, bytes_per_second) in rates {
            machine.set_rate(hop, bytes_per_second);
        }
        Ok(machine)
    }
}

/// Most ports of an HCA. InfiniBand's and sysfs's numbers go further, nobody's patience does.
const MAX_PORTS: u32 = 1024;

fn interfaces(entry: &FunctionEntry) -> Result<Vec<String>, PlatformError> {
    match &entry.interfaces {
        None => Ok(Vec::new()),
        Some(names) if entry.role == Role::Hca && !names.is_empty() => Ok(names.clone()),
        Some(names) => Err(PlatformError::Value(format!(
            "function {:?} has interfaces = {names:?}; an HCA names at least one, others none",
            entry.name
        ))),
    }
}

/// Longest name of an RDMA device (`IB_DEVICE_NAME_MAX` less the terminating NUL).
const MAX_NAME_BYTES: usize = 63;

/// Whether programs can know an HCA by this: it becomes the name of a directory.
fn is_device_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_fine)
        && !name.starts_with('.')
}

fn ports(entry: &FunctionEntry) -> Result<u32, PlatformError> {
    match entry.ports {
        None => Ok(1),
        Some(ports) if entry.role == Role::Hca && (1..=MAX_PORTS).contains(&ports) => Ok(ports),
        Some(ports) => Err(PlatformError::Value(format!(
            "function {:?} has ports = {ports}; an HCA has 1 to {MAX_PORTS}, others have none",
            entry.name
        ))),
    }
}

/// What the HCA and its Data Direct function know each other by, unless the file says otherwise.
fn vuid(entry: &FunctionEntry) -> Result<Option<String>, PlatformError> {
    let hca = match entry.role {
        Role::Hca => Some(&entry.name),
        Role::DataDirect => entry.of.as_ref(),
        _ => None,
    };
    match (&entry.vuid, hca) {
        (Some(vuid), Some(_)) => Ok(Some(vuid.clone())),
        (None, hca) => Ok(hca.map(|name| format!("peerdma-{name}"))),
        (Some(_), None) => Err(PlatformError::Value(format!(
            "function {:?} has a vuid; only HCAs and Data Direct functions have one",
            entry.name
        ))),
    }
}

/// An HCA may use Data Direct unless the file says otherwise.
fn data_direct(entry: &FunctionEntry) -> Result<Option<bool>, PlatformError> {
    match (entry.role, entry.data_direct) {
        (Role::Hca, may) => Ok(Some(may.unwrap_or(true))),
        (_, None) => Ok(None),
        (_, Some(_)) => Err(PlatformError::Value(format!(
            "function {:?} has data_direct; it is a capability of HCAs",
            entry.name
        ))),
    }
}

fn id(text: &str) -> Result<(u16, u16), PlatformError> {
    let parse = || {
        let (vendor, device) = text.split_once(':')?;
        Some((u16::from_str_radix(vendor, 16).ok()?, u16::from_str_radix(device, 16).ok()?))
    };
    parse().ok_or_else(|| PlatformError::Value(format!("{text:?} is not an id such as 8086:09a2")))
}

fn acs(bits: Option<Vec<String>>) -> Result<Acs, PlatformError> {
    let Some(names) = bits else { return Ok(Acs::Absent) };
    names
        .iter()
        .try_fold(AcsBits::empty(), |all, name| {
            let bit = AcsBits::from_name(name);
            bit.map(|b| all | b).ok_or_else(|| {
                PlatformError::Value(format!("{name:?} is not an ACS bit (SV TB RR CR UF EC DT)"))
            })
        })
        .map(Acs::Enabled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MapType;

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

    /// Redirected requests go up to the root complex; translated ones need not, port by port.
    #[test]
    fn translated_requests_pass_where_acs_lets_them() {
        let text = include_str!("platforms/default.toml");
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
        let text = include_str!("platforms/default.toml");
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
        let before = include_str!("platforms/default.toml");
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
        let good = include_str!("platforms/default.toml");
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
        let good = include_str!("platforms/default.toml");
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
}
