//! MPI libraries, each over something that leads to the device.

use super::Wheels;
use crate::c::mpi_program;
use crate::{Counters, Run};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An MPI library, and the way that its messages take.
#[derive(Clone, Debug)]
pub struct Mpi {
    name: &'static str,
    compiler: PathBuf,
    launcher: PathBuf,
    switches: &'static str,
    on_hca: bool,
    env: Vec<(&'static str, String)>,
}

impl Mpi {
    /// The distribution's Open MPI over UCX, which may use these transports only.
    ///
    /// # Errors
    /// The reason why it is not there. A test skips with it.
    pub fn open_over_ucx(transports: &str) -> Result<Mpi, String> {
        Mpi::open("--mca pml ucx --mca osc ucx", ucx(transports))
    }

    /// The same within a host, as it is without the device: by UCX's shared memory and `cma`.
    ///
    /// # Errors
    /// As above.
    pub fn open_over_shared_memory() -> Result<Mpi, String> {
        let mut env = vec![("UCX_TLS", "posix,cma,self".to_owned())];
        // It takes UCX for devices that it knows only.
        for variable in ["OMPI_MCA_pml_ucx_tls", "OMPI_MCA_pml_ucx_devices"] {
            env.push((variable, "any".to_owned()));
        }
        let mpi = Mpi::open("--mca pml ucx --mca osc ucx", env)?;
        Ok(Mpi { on_hca: false, ..mpi })
    }

    /// The distribution's Open MPI over libfabric's verbs provider. One-sided operations are made
    /// of messages there.
    ///
    /// # Errors
    /// As above.
    pub fn open_over_verbs() -> Result<Mpi, String> {
        Mpi::open("--mca pml cm --mca mtl ofi --mca osc pt2pt", verbs())
    }

    fn open(switches: &'static str, env: Vec<(&'static str, String)>) -> Result<Mpi, String> {
        let tools = ["mpicc.openmpi", "mpirun.openmpi"].map(PathBuf::from);
        let mut mpi = Mpi::of("openmpi", tools, env, "libopenmpi-dev and openmpi-bin")?;
        mpi.switches = switches;
        // More ranks than processors, and perhaps as root.
        for variable in [
            "OMPI_MCA_rmaps_base_oversubscribe",
            "OMPI_ALLOW_RUN_AS_ROOT",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        ] {
            mpi.env.push((variable, "1".to_owned()));
        }
        mpi.env.push(("MPI4PY_MPIABI", "openmpi".to_owned()));
        Ok(mpi)
    }

    /// The distribution's MPICH over UCX, which may use these transports only.
    ///
    /// # Errors
    /// As above.
    pub fn mpich_over_ucx(transports: &str) -> Result<Mpi, String> {
        let tools = ["mpicc.mpich", "mpirun.mpich"].map(PathBuf::from);
        let env = mpich(ucx(transports));
        Mpi::of("mpich", tools, env, "libmpich-dev and mpich")
    }

    /// A wheel's MPICH over libfabric's verbs provider.
    ///
    /// # Errors
    /// As above.
    pub fn mpich_over_verbs(wheels: &Wheels) -> Result<Mpi, String> {
        let tools = ["mpicc", "mpirun"].map(|name| wheels.program(name));
        let mut env = mpich(verbs());
        env.push(("MPIR_CVAR_CH4_NETMOD", "ofi".to_owned()));
        Mpi::of("mpich-wheel", tools, env, "the wheel mpich")
    }

    fn of(
        name: &'static str,
        tools: [PathBuf; 2],
        env: Vec<(&'static str, String)>,
        packages: &str,
    ) -> Result<Mpi, String> {
        if !tools.iter().all(|tool| found(tool)) {
            return Err(format!("{} is not installed ({packages})", tools[1].display()));
        }
        let [compiler, launcher] = tools;
        Ok(Mpi { name, compiler, launcher, switches: "", on_hca: true, env })
    }

    /// Compiles a program of ours for it, as [`crate::c_program`] does.
    ///
    /// # Errors
    /// The reason why it cannot be compiled here: no C compiler. A test skips with it.
    pub fn program(&self, name: &str) -> Result<PathBuf, String> {
        mpi_program(name, self.name, &self.compiler)
    }

    /// So many ranks of a program, started by this library's own launcher on the software HCA, if
    /// that is its way. No shared memory is between them then.
    pub fn run(&self, ranks: u32, program: &Path, counters: &Counters) -> Run {
        let line = format!("{} {} -n {ranks}", self.launcher.display(), self.switches);
        let run = if self.on_hca { Run::hca(&line) } else { Run::plain(&line) };
        let run = self.env.iter().fold(run, |run, (name, value)| run.env(name, value));
        let run = run.env("PEERDMA_COUNTERS", counters.file()).arg(program);
        run.limit(Duration::from_secs(120))
    }
}

/// Whether there is such a program, by its path or in one of the usual folders.
fn found(program: &Path) -> bool {
    match program.to_str() {
        Some(name) if !name.contains('/') => crate::has(name),
        _ => program.is_file(),
    }
}

fn ucx(transports: &str) -> Vec<(&'static str, String)> {
    let device = "peerdma0:1".to_owned();
    vec![("UCX_TLS", format!("{transports},self")), ("UCX_NET_DEVICES", device)]
}

fn verbs() -> Vec<(&'static str, String)> {
    vec![("FI_PROVIDER", "verbs;ofi_rxm".to_owned())]
}

/// MPICH, as if each rank were on a host of its own.
fn mpich(mut env: Vec<(&'static str, String)>) -> Vec<(&'static str, String)> {
    env.push(("MPIR_CVAR_NOLOCAL", "1".to_owned()));
    env.push(("HYDRA_LAUNCHER", "fork".to_owned()));
    env
}
