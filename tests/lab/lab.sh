#!/usr/bin/env bash
# The machines of a lab: namespaces, mounts and processes. The crate madako-lab calls this script; see docs/lab.md.
#
#   lab.sh keep               keeps a lab until the end of its standard input, then removes it; prints the lab's directory
#   lab.sh power-on DIR N     starts machine N, with an empty disk if it has none
#   lab.sh power-off DIR N    ends all processes of machine N at once
#   lab.sh erase DIR N        replaces the disk of a machine that is off by an empty one
#   lab.sh port DIR N up|down connects machine N to the bridge, or disconnects it
#   lab.sh disk DIR N full|free
#                             leaves the disk of machine N without a free byte, or frees it again
#   lab.sh sshd N             (in machine N, as /run/lab.sh) starts sshd, with new host keys if there are none
#   lab.sh dockerd N ID       (in machine N) starts dockerd
#   lab.sh init DIR, machine DIR N
#                             the first processes of a lab and of a machine; started by `keep` and `power-on`
#
# All processes of a lab are in one PID namespace, and nothing of the host's network or mounts changes. If the keeper is
# killed, the kernel ends the namespace. A start removes the cgroups and directories of such labs.
set -euo pipefail

# Debian's programs, not those that the host may have in /usr/local.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
readonly PREFIX=madako-lab
readonly NETWORK=10.78.0
# Pods of machine N have addresses in PODS.N.0/24.
readonly PODS=10.79
readonly PAUSE=madako-lab/pause:1
# Machines of a lab at most.
readonly MACHINES=16
# Images of etcd and tools take 100 MB, each one of Kubernetes 150 MB, those of pods 170 MB, a member of etcd 130 MB.
readonly DISK=2g
# Weight of a lab's containers, where each other process of the host has 1024. With the default of a cgroup, also 1024,
# the members of etcd on all machines would share the time of one process, and time out beside a build.
readonly CPU_SHARES=16384
readonly CONTAINERD=/run/containerd/containerd.sock
readonly RUNTIME=/run/lab-runtime
# A login without root's rights, in the group of dockerd's socket. No other account has this number.
readonly LOGIN=cke LOGIN_ID=61078

main() {
  local verb=$1
  shift
  case $verb in
  keep | init | machine | sshd | dockerd | disk | port | erase) "$verb" "$@" ;;
  power-on) power_on "$@" ;;
  power-off) power_off "$@" ;;
  *) echo "unknown verb $verb" >&2; exit 2 ;;
  esac
}

# --- The lab -------------------------------------------------------------------------------------------------------

# The start time of a process, which with its number is unique; nothing for a process that has ended.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

keep() {
  local base=${TMPDIR:-/tmp} line
  id=$PREFIX-$$-$(started $$)
  dir=$base/$id lab='' init='' net=''
  remove_dead "$base"
  mkdir -m 700 "$dir"
  trap remove EXIT
  weigh "$id"
  trap 'exit 1' TERM INT HUP
  ssh-keygen -q -t ed25519 -N '' -C "$PREFIX" -f "$dir/id_ed25519"
  mkfifo "$dir/started"
  setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child \
    "$BASH" "$0" init "$dir" </dev/null >"$dir/started" 2>"$dir/log" &
  lab=$!
  read -r init <"$dir/started" || { cat "$dir/log"; exit 1; }
  rm "$dir/started"
  net=$(readlink "/proc/$init/ns/net")
  echo "$init" >"$dir/pid"
  echo "$dir"
  exec >/dev/null 2>&1
  while read -r line; do :; done
}

# Makes the lab's cgroup for CPU time. Only cgroup v1 has its own hierarchy for it; with v2, containers stay with the default.
weigh() {
  local top=/sys/fs/cgroup/cpu
  [ ! -e "$top/cpu.shares" ] || { mkdir "$top/$1" && echo "$CPU_SHARES" >"$top/$1/cpu.shares"; }
}

# Ends and removes the lab of this keeper.
remove() {
  if [ -n "$net" ]; then
    kill_guests
    kill -KILL "$init" 2>/dev/null || :
  fi
  # unshare ends after all processes of the PID namespace.
  [ -z "$lab" ] || wait "$lab" || :
  remove_cgroups "$id"
  rm -rf --one-file-system "$dir"
}

# Ends programs that a test started in the lab's network, which are not in its PID namespace. A program may start others
# meanwhile.
kill_guests() {
  local own process found=yes
  own=$(readlink /proc/self/ns/pid)
  while [ -n "$found" ]; do
    found=''
    for process in /proc/[0-9]*; do
      [ "$(readlink "$process/ns/net")" = "$net" ] && [ "$(readlink "$process/ns/pid")" = "$own" ] || continue
      found=yes
      kill -KILL "${process#/proc/}" || :
    done
    [ -z "$found" ] || sleep 0.02
  done
}

# Removes what labs left whose keepers were killed.
remove_dead() {
  local found name process
  for found in "$1/$PREFIX"-* /sys/fs/cgroup/"$PREFIX"-* /sys/fs/cgroup/*/"$PREFIX"-*; do
    [ -d "$found" ] || continue
    name=${found##*/}
    process=${name#"$PREFIX"-}
    [ "$(started "${process%-*}")" != "${process#*-}" ] || continue
    remove_cgroups "$name"
    rm -rf --one-file-system "${1:?}/$name"
  done
}

# Removes the empty cgroups of a lab.
remove_cgroups() {
  local top
  for top in "/sys/fs/cgroup/$1" /sys/fs/cgroup/*/"$1"; do
    [ ! -d "$top" ] || find "$top" -depth -type d -exec rmdir {} + || :
  done
}

# The first process of a lab. It prints its number in the host's PID namespace, to which /proc belongs.
init() {
  local self other
  ip link set lo up
  ip link add lab0 type bridge
  ip address add "$NETWORK.1/24" dev lab0
  ip link set lab0 up
  for other in $(seq "$MACHINES"); do ip route add "$PODS.$other.0/24" via "$NETWORK.$((10 + other))"; done
  read -r self _ </proc/self/stat
  echo "$self"
  exec >/dev/null docker-init -s -- sleep infinity
}

# Runs a command in the lab's namespaces.
in_lab() { nsenter --target "$(cat "$1/pid")" --net --mount --pid -- "${@:2}"; }

# --- Machines ------------------------------------------------------------------------------------------------------

power_on() {
  local dir=$1 n=$2
  mkdir -p "$dir/$n/disk"
  rm -f "$dir/$n/pid"
  in_lab "$dir" mountpoint -q "$dir/$n/disk" || erase "$dir" "$n"
  # shellcheck disable=SC2016 # expanded by the inner shell
  in_lab "$dir" "$BASH" -c 'setsid unshare --net --mount --pid --uts --ipc --fork --kill-child \
    "$@" </dev/null >>"$0" 2>&1 &' "$dir/$n/log" "$BASH" "$0" machine "$dir" "$n"
}

power_off() {
  local dir=$1 n=$2 first
  first=$(cat "$dir/$n/pid")
  in_lab "$dir" ip link delete "port$n"
  kill -KILL "$first"
  # It ends after all others of its PID namespace.
  while [ -e "/proc/$first" ]; do sleep 0.02; done
  rm "$dir/$n/pid"
}

erase() {
  local disk=$1/$2/disk
  # Lazily, since the kernel may not yet have ended the machine's mounts.
  ! in_lab "$1" mountpoint -q "$disk" || in_lab "$1" umount --lazy "$disk"
  in_lab "$1" mount -t tmpfs -o "mode=755,size=$DISK" "$PREFIX" "$disk"
}

port() { in_lab "$1" ip link set "port$2" "$3"; }

disk() {
  local disk=$1/$2/disk size=$DISK
  [ "$3" = free ] || size=$(in_lab "$1" df --block-size=1 --output=used "$disk" | tail -n1 | tr -d ' ')
  in_lab "$1" mount -o "remount,size=$size" "$disk"
}

# The first process of a machine. Its root directory is the host's, with changes on the machine's own disk.
machine() {
  local dir=$1 n=$2 disk=$1/$2/disk self lab key root other
  lab=$(cat "$dir/pid")
  key=$(cat "$dir/id_ed25519.pub")
  # /proc is the host's until the machine has its own root directory.
  read -r self _ </proc/self/stat
  nsenter "--net=/proc/$lab/ns/net" ip link add "port$n" type veth peer name eth0 netns "/proc/$self/ns/net"
  nsenter "--net=/proc/$lab/ns/net" ip link set "port$n" master lab0 up
  ip link set lo up
  # Without it docker warns at each container that has another network than the host's.
  echo 1 >/proc/sys/net/ipv4/ip_forward
  # Always the same hardware address, so that neighbours find the machine again after a restart.
  ip link set eth0 address "02:78:00:00:00:$(printf %02x "$n")" up
  ip address add "$NETWORK.$((10 + n))/24" dev eth0
  ip route add default via "$NETWORK.1"
  for other in $(seq "$MACHINES"); do
    [ "$other" = "$n" ] || ip route add "$PODS.$other.0/24" via "$NETWORK.$((10 + other))"
  done
  hostname "node$n"

  root=$disk/root
  mkdir -p "$disk"/{changes,work,root,docker,containerd,kubelet,tmp,home}
  chmod 1777 "$disk/tmp"
  mount -t overlay -o "lowerdir=/,upperdir=$disk/changes,workdir=$disk/work" "$PREFIX" "$root"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  mount -t tmpfs -o mode=755,size=64m "$PREFIX" "$root/run"
  mkdir -p "$root/var/lib/"{docker,containerd,kubelet}
  # An overlay on this overlay could have no changes of its own.
  mount --bind "$disk/docker" "$root/var/lib/docker"
  mount --bind "$disk/containerd" "$root/var/lib/containerd"
  mount --bind "$disk/kubelet" "$root/var/lib/kubelet"
  mount --bind "$disk/tmp" "$root/tmp"
  # The settings of the host's root, such as another PATH, are none of the machine's.
  mount --bind "$disk/home" "$root/root"
  # The host may have this script in a file system that the machine does not see.
  cp "$0" "$root/run/lab.sh"
  mkdir "$root/run/before"
  cd "$root"
  echo "$self" >"$dir/$n/pid.new"
  mv "$dir/$n/pid.new" "$dir/$n/pid"
  # The disk is busy here as long as this mount is known.
  pivot_root . run/before
  umount --lazy /run/before
  rmdir /run/before
  # As systemd does: docker refuses mounts with propagation otherwise.
  mount --make-rshared /

  [ -e /etc/ssh/lab_key_of_operator ] || prepare "$key" "$n"
  sshd "$n"
  runtime "/${dir##*/}/$n"
  containerd
  dockerd "$n" "${dir##*/}"
  exec docker-init -s -- sleep infinity
}

# Makes an account and a place for keys on a new disk.
prepare() {
  local group
  getent group docker >/dev/null || echo "docker:x:$LOGIN_ID:" >>/etc/group
  group=$(getent group docker | cut -d: -f3)
  echo "$LOGIN:x:$LOGIN_ID:$group::/home/$LOGIN:/bin/sh" >>/etc/passwd
  echo "$LOGIN:*:19000:0:99999:7:::" >>/etc/shadow
  mkdir -p "/home/$LOGIN" /etc/docker
  chown "$LOGIN_ID:$group" "/home/$LOGIN"
  # Of the host, and of no use to a machine.
  rm -rf /etc/docker/* /etc/etcd
  echo "78000000000000000000000000$(printf %06x "$2")" >/etc/machine-id
  mkdir -p /etc/containerd /etc/cni/net.d
  cat >/etc/containerd/config.toml <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE"
  # Without the right to lower it, runc fails: "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "$RUNTIME"
END
  cat >/etc/cni/net.d/10-lab.conflist <<END
{"cniVersion": "0.4.0", "name": "lab", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "$PODS.$2.0/24"}]]}}]}
END
  # The last step: a machine without this file is prepared again.
  echo "$1" >/etc/ssh/lab_key_of_operator
}

sshd() {
  local kind
  for kind in ed25519 ecdsa; do
    [ -e "/etc/ssh/lab_host_$kind" ] || ssh-keygen -q -t $kind -N '' -C "node$1" -f "/etc/ssh/lab_host_$kind"
  done
  mkdir -p /run/sshd
  cat >/etc/ssh/lab_config <<END
HostKey /etc/ssh/lab_host_ed25519
HostKey /etc/ssh/lab_host_ecdsa
AuthorizedKeysFile /etc/ssh/lab_key_of_operator
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
MaxStartups 64
PidFile /run/sshd.pid
SetEnv PATH=/usr/sbin:/usr/bin:/sbin:/bin
Subsystem sftp internal-sftp
$([ ! -e /etc/ssh/lab_command ] || sed 's/^/ForceCommand /' /etc/ssh/lab_command)
END
  setsid /usr/sbin/sshd -D -f /etc/ssh/lab_config -E /run/sshd.log </dev/null >/dev/null 2>&1 &
}

# Writes the runtime of containers, which changes two settings before runc reads them. Cgroups of pods belong to the lab. And a
# host that is itself a container or a small virtual machine may withhold a capability, for which runc fails at privileged
# containers ("unable to apply caps").
runtime() {
  local cgroup=$1 bound capability missing=NONE
  bound=,$(setpriv --dump | sed -n 's/^Capability bounding set: //p'),
  for capability in $(setpriv --list-caps); do
    [[ $bound == *,$capability,* ]] || missing+="|CAP_${capability^^}"
  done
  cat >"$RUNTIME" <<END
#!/bin/sh
missing='$missing'
before='' bundle=.
for word; do
  case \$before in
  --bundle | -b) bundle=\$word ;;
  --process | -p) process=\$word ;;
  esac
  before=\$word
done
for file in "\$bundle/config.json" "\${process:-}"; do
  [ ! -f "\$file" ] || sed -i -E "s/\"(\$missing)\",?//g; s/,\]/]/g; s,(\"cgroupsPath\": ?\")/k8s.io/,\1$cgroup/," "\$file"
done
exec /usr/sbin/runc "\$@"
END
  chmod 755 "$RUNTIME"
}

# The containerd of both docker and the kubelet, as Debian's units arrange it.
containerd() {
  setsid /usr/bin/containerd </dev/null >>/run/containerd.log 2>&1 &
  for _ in $(seq 200); do
    [ ! -S "$CONTAINERD" ] || return 0
    sleep 0.05
  done
  tail /run/containerd.log >&2
  return 1
}

dockerd() {
  rm -f /run/docker.pid
  setsid /usr/sbin/dockerd --containerd="$CONTAINERD" --add-runtime "$PREFIX=$RUNTIME" --default-runtime "$PREFIX" --bridge=none --iptables=false --ip-forward=false --storage-driver=overlay2 \
    --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent="/$2/$1" \
    --group docker --pidfile /run/docker.pid </dev/null >>/run/dockerd.log 2>&1 &
}

main "$@"
