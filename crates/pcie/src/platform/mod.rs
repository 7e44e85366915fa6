//! A platform: the machine that software devices live in, read from a small TOML file
//! (`platforms/default.toml` shows the form).

mod file;

use crate::machine::{Function, Machine, Role, TreeError};
use crate::pace::Pacer;
use crate::route::{Route, Target, Unreachable, find, find_translated};
use crate::{Address, LinkId, ReadyMade, RouteTable};
use engine_thread::lock;
use file::File;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// Longest platform file. One of a machine with a thousand functions has some hundred KiB.
const LONGEST: u64 = 4 << 20;

/// The text of a regular file. Opening a device may do something, a FIFO is waited for, and
/// `/dev/zero` has no end.
fn read(path: &Path) -> io::Result<String> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let regular = |metadata: std::fs::Metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(refused("it is not a regular file".into())),
    };
    regular(std::fs::metadata(path)?)?;
    // it may have become a FIFO since
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(file.metadata()?)?;
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(refused(format!("it is longer than {} MiB", LONGEST >> 20)));
    }
    Ok(text)
}

/// Why a platform file was refused.
#[derive(Debug, thiserror::Error)]
pub enum PlatformError {
    /// The file could not be read.
    #[error("platform file: {0}")]
    Read(#[from] std::io::Error),
    /// It is not TOML of the documented form; says where.
    #[error("platform file: {0}")]
    Form(#[from] toml::de::Error),
    /// The platform's functions do not form a tree.
    #[error("platform file: {0}")]
    Tree(#[from] TreeError),
    /// A value is wrong.
    #[error("platform file: {0}")]
    Value(String),
}

/// The machine and the routes taken in it so far. Share it by `Arc`: its routes carry the byte
/// counters.
#[derive(Debug)]
pub struct Platform {
    machine: Machine,
    routes: Mutex<Routes>,
}

/// The routes handed out, of which there are few and each registration asks for some, and the
/// functions whose routes other processes may see.
#[derive(Debug, Default)]
struct Routes {
    found: BTreeMap<(Address, Target), Arc<Route>>,
    /// The routes of translated requests that take another way; `None` where there is none.
    translated: BTreeMap<(Address, Target), Option<Arc<Route>>>,
    published: BTreeMap<Address, Arc<RouteTable>>,
    pacer: Option<Pacer>,
}

impl Default for Platform {
    /// The embedded platform: `peerdma0` with its Data Direct function, `gpu0` behind the same
    /// switch, `gpu1` on the other socket.
    fn default() -> Platform {
        Platform::from_toml(include_str!("../platforms/default.toml"))
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
            None => Platform::from_toml(&read(name_or_path)?),
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

    /// How `function` reaches `target`. The same pair always gets the same route, which counts its
    /// bytes.
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

    /// How translated requests of `function` reach `target`, if it has ATS and ACS lets them take a
    /// shorter way than [`Platform::route`]: their address type distinguishes them, and they need
    /// relaxed ordering.
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

    /// Paces links whose rate is known to this fraction of it, for routes handed out from now on:
    /// [`crate::owed`] says how long to hold back. Not paced unless asked.
    pub fn pace(&self, fraction: f64) {
        self.locked().pacer = Some(Pacer::new(fraction));
    }

    /// Lets other processes see the routes of a function that are handed out from now on. Its
    /// routes so far are forgotten with their bytes: a device that is opened again begins at
    /// nought.
    pub fn publish(&self, function: Address, table: Arc<RouteTable>) {
        let mut routes = self.locked();
        routes.found.retain(|(of, _), _| *of != function);
        routes.translated.retain(|(of, _), _| *of != function);
        routes.published.insert(function, table);
    }

    fn locked(&self) -> MutexGuard<'_, Routes> {
        lock(&self.routes)
    }

    /// All routes handed out so far.
    pub fn routes(&self) -> Vec<Arc<Route>> {
        let routes = self.locked();
        routes.found.values().chain(routes.translated.values().flatten()).cloned().collect()
    }

    /// Bytes that crossed each link, in both directions. A route that crosses a link twice counts
    /// twice.
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

#[cfg(test)]
mod tests;
