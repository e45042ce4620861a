#!/usr/bin/env bash
# cluster.sh {up|down|env|stop-node NAME|start-node NAME}: a throw-away SLURM cluster on this machine.
# Needs root and Debian's packages slurm-wlm and munge. Several nodes, fake GPUs, preemption and
# requeue, on the loopback only; everything lies under $SLURM_TEST_ROOT.
#   SLURM_TEST_ROOT (required)  SLURM_TEST_NODES (4)  SLURM_TEST_CPUS (8 per node)
#   SLURM_TEST_GPUS (2 per node; 0 = none)  SLURM_TEST_PORT (26817; the nodes take those above it)
set -euo pipefail
R=${SLURM_TEST_ROOT:?}
N=${SLURM_TEST_NODES:-4}
CPUS=${SLURM_TEST_CPUS:-8}
GPUS=${SLURM_TEST_GPUS:-2}
PORT=${SLURM_TEST_PORT:-26817}
export SLURM_CONF=$R/slurm.conf
export PATH=$PATH:/usr/sbin:/sbin

alive() {  # alive NAME: is the recorded process alive, and still that program?
  local p; p=$(cat "$R/run/$1.pid" 2>/dev/null) || return 1
  [ -n "$p" ] && [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "${1%%-*}" ] &&
    ! grep -qs '^State:[[:space:]]*Z' "/proc/$p/status"
}

write_conf() {
  local host; host=$(hostname -s 2>/dev/null || hostname)
  mkdir -p "$R"/{run,log,state,munge,dev}
  for i in $(seq 1 "$N"); do mkdir -p "$R/spool/n$i"; done
  chmod 755 "$R" "$R/munge" "$R/run"  # munged insists
  (umask 077; head -c 1024 /dev/urandom > "$R/munge/munge.key")
  : > "$R/gres.conf"
  local gres="" types=""
  if [ "$GPUS" -gt 0 ]; then
    gres="Gres=gpu:$GPUS"; types="GresTypes=gpu"
    for i in $(seq 1 "$N"); do
      # slurmd sets CUDA_VISIBLE_DEVICES only for device files: twins of /dev/null will do.
      for g in $(seq 0 $((GPUS - 1))); do mknod -m 666 "$R/dev/n$i-gpu$g" c 1 3; done
      echo "NodeName=n$i Name=gpu File=$R/dev/n$i-gpu[0-$((GPUS - 1))] AutoDetect=off" >> "$R/gres.conf"
    done
  fi
  # cred_expire: a requeued job waits for its old credential. MinJobAge: ended jobs stay in squeue,
  # since there is no accounting here. EnforcePartLimits: an impossible request fails at once.
  {
    cat <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$R/munge/munge.sock,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$R/state
SlurmctldPidFile=$R/run/slurmctld.pid
SlurmctldLogFile=$R/log/slurmctld.log
SlurmdPidFile=$R/run/slurmd-%n.pid
SlurmdSpoolDir=$R/spool/%n
SlurmdLogFile=$R/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0,requeue_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=6
InactiveLimit=0
KillWait=10
MinJobAge=86400
Waittime=0
JobRequeue=1
MaxArraySize=1001
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
$types
CONF
    for i in $(seq 1 "$N"); do
      echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((PORT + i)) CPUs=$CPUS RealMemory=100000 $gres State=UNKNOWN"
    done
    echo "PartitionName=debug Nodes=n[1-$((N - 2))] Default=YES MaxTime=INFINITE State=UP"
    # A job of urgent pushes out those of spare.
    echo "PartitionName=spare Nodes=n$((N - 1)) MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10"
    echo "PartitionName=urgent Nodes=n$((N - 1)) MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF"
    # The last node is for being stopped.
    echo "PartitionName=fragile Nodes=n$N MaxTime=INFINITE State=UP"
  } > "$SLURM_CONF"
  { cat /etc/hosts; for i in $(seq 1 "$N"); do echo "127.0.0.1 n$i"; done; } > "$R/hosts"
}

start_node() {
  # In namespaces of its own a node has its name as host name, and knows every node's address.
  unshare -mu sh -c 'hostname "$1" && mount --bind "$2/hosts" /etc/hosts && exec slurmd -N "$1" -f "$2/slurm.conf"' sh "$1" "$R"
}

stop_one() {
  local p; p=$(cat "$R/run/$1.pid" 2>/dev/null) || return 0
  if alive "$1"; then
    kill "$p" 2>/dev/null || true
    for _ in $(seq 1 50); do alive "$1" || break; sleep 0.1; done
    alive "$1" && kill -9 "$p" 2>/dev/null || true
  fi
  rm -f "$R/run/$1.pid"
}

up() {
  [ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 1; }
  for b in munged slurmctld slurmd sinfo; do
    command -v $b >/dev/null || { echo "missing $b: apt-get install slurm-wlm munge" >&2; exit 1; }
  done
  write_conf
  munged --force --key-file="$R/munge/munge.key" --socket="$R/munge/munge.sock" \
    --pid-file="$R/run/munged.pid" --log-file="$R/log/munged.log" --seed-file="$R/munge/munged.seed"
  slurmctld -f "$SLURM_CONF"
  for i in $(seq 1 "$N"); do start_node "n$i"; done
  for _ in $(seq 1 300); do
    ok=$(sinfo -h -N -o '%N %t' 2>/dev/null | sort -u | cut -d' ' -f2 | grep -c '^idle$' || true)
    [ "$ok" = "$N" ] && return 0
    sleep 0.1
  done
  echo "the cluster did not come up; see $R/log" >&2; sinfo -N -l >&2 || true; return 1
}

down() {
  if alive slurmctld; then
    scancel -u root >/dev/null 2>&1 || true
    for _ in $(seq 1 150); do [ -z "$(squeue -h 2>/dev/null)" ] && break; sleep 0.1; done
  fi
  for f in "$R"/run/slurmd-*.pid; do [ -e "$f" ] && stop_one "$(basename "$f" .pid)"; done
  stop_one slurmctld
  stop_one munged
}

case "${1:-}" in
  up) up ;;
  down) down ;;
  env) echo "export SLURM_CONF=$SLURM_CONF" ;;
  stop-node)  # as when its power goes: the daemon and every process of its jobs
    kill -9 "$(cat "$R/run/slurmd-$2.pid")"
    rm -f "$R/run/slurmd-$2.pid" ;;
  start-node) start_node "$2" ;;
  *) echo "usage: $0 {up|down|env|stop-node NAME|start-node NAME}" >&2; exit 2 ;;
esac
