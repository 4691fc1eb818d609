"""A Slurm cluster of one node on this machine: munged, slurmctld and slurmd of its own, beside what the system may run."""
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
# Debian keeps daemons where only root looks for them.
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
CPUS = 4  # that Slurm believes in

# No systemd and no control groups: it runs in containers. A requeued job may start again once its old credential has
# expired, which takes two minutes unless told otherwise.
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
GresTypes=gpu
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 Gres=gpu:{cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Why there can be no such cluster here, or nothing."""
    lacking = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if lacking:
        return f"no {lacking[0]} (tools/install_deps.sh extra)"
    return "" if os.geteuid() == 0 else "slurmd and munged start as root only"


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def processes_below(parent):
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        children = [int(word) for word in file.read().split()]
    return children + [below for child in children for below in processes_below(child)]


class Cluster:
    """Whatever it starts, and what its jobs start, is gone after stop(); killed daemons take nothing with them, so stop()
    belongs into a `finally`."""

    def __init__(self):
        self.libc = ctypes.CDLL(None)
        self.libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: slurmstepd leaves its parent, and comes to us
        self.folder = tempfile.mkdtemp(prefix="slurm_", dir="/tmp")  # short: sockets have names of 107 bytes
        os.chmod(self.folder, 0o755)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "PMI", "OMPI_"))}
        self.environment.update(PATH=PATH, SLURM_CONF=f"{self.folder}/slurm.conf")
        self.daemons = []

    def start(self):
        controller_port, node_port = free_ports(2)
        for name in ("state", "spool"):
            os.mkdir(f"{self.folder}/{name}")
        self.write("slurm.conf", CONFIG.format(folder=self.folder, host=socket.gethostname().split(".")[0], cpus=CPUS,
                                               controller_port=controller_port, node_port=node_port))
        for number in range(CPUS):  # GPUs are files that Slurm counts
            self.write(f"gpu{number}", "")
        self.write("gres.conf", f"NodeName=localhost Name=gpu File={self.folder}/gpu[0-{CPUS - 1}]\n")
        version = subprocess.run(["slurmd", "-V"], env=self.environment, capture_output=True, text=True).stdout
        if tuple(map(int, re.search(r"(\d+)\.(\d+)", version).groups())) >= (23, 11):
            self.write("cgroup.conf", "CgroupPlugin=disabled\n")  # before, it was not touched unless asked for
        key = self.write("munge.key", os.urandom(128))
        os.chmod(key, 0o600)

        self.daemon("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                    f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
                    f"--seed-file={self.folder}/munged.seed")
        self.wait_for(lambda: os.path.exists(f"{self.folder}/munge.socket"), "munged's socket")
        self.daemon("slurmctld", "-D")
        self.wait_for(lambda: "UP" in self.run("scontrol", "ping").stdout, "slurmctld")
        self.daemon("slurmd", "-D", "-N", "localhost")
        self.wait_for(lambda: self.run("sinfo", "--noheader", "--format=%t").stdout.strip() == "idle", "an idle node")

    def stop(self):
        if len(self.daemons) == 3:
            self.run("scancel", "--full", "--signal=KILL", "--state=RUNNING")
            self.run("scancel", "--state=PENDING")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        while left := processes_below(os.getpid()):
            for process in left:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                while os.waitpid(-1, 0):
                    pass
            except ChildProcessError:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        return path

    def daemon(self, *command):
        def die_with_the_test():
            self.libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG

        output = open(f"{self.folder}/{command[0]}.out", "w")
        self.daemons.append(subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output,
                                             stderr=subprocess.STDOUT, preexec_fn=die_with_the_test))
        output.close()

    def run(self, *command, timeout=60, **options):
        return subprocess.run(command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=timeout, **options)

    def wait_for(self, done, what, seconds=60):
        limit = time.monotonic() + seconds
        while not done():
            dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if dead or time.monotonic() > limit:
                raise RuntimeError(f"waited for {what}" + "".join(f", but {name} ended" for name in dead) + self.logs())
            time.sleep(0.2)

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".log", ".out")):
                with open(os.path.join(self.folder, name), errors="replace") as file:
                    text += f"\n---- {name}\n" + file.read()[-3000:]
        return text

    def job(self, number):
        """What `scontrol show job` says: {"JobState": "RUNNING", "Restarts": "0", ...}"""
        text = self.run("scontrol", "show", "job", str(number)).stdout
        return dict(re.findall(r"(\S+?)=(\S*)", text))
