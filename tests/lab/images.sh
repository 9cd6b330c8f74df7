#!/usr/bin/env bash
# The images of a lab's machines, as archives for `docker load` and `ctr images import`, without a container engine. The crate
# madako-lab calls this script; see docs/lab.md.
#
#   images.sh etcd FILE NAME              Debian's etcd, arranged as in CKE's image
#   images.sh kubernetes FILE NAME PROGRAM
#                                         the components of Kubernetes and kubectl: one program, by its names
#   images.sh pods FILE DIRECTORY         the images of pods: the programs of tests/pods in DIRECTORY, and Debian's unbound
#
# Every image is made FROM scratch: programs, with the loader and the libraries that ldd names.
set -euo pipefail

export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
readonly COMPONENTS=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
# CKE's images run as this user.
readonly USER_ID=10000

main() {
  local file=$2
  work=$(mktemp -d "$file.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/archive"
  manifest=''
  case $1 in
  etcd) etcd "$3" ;;
  kubernetes) kubernetes "$3" "$4" ;;
  pods) pods "$3" ;;
  *) echo "unknown images $1" >&2; exit 2 ;;
  esac
  echo "[$manifest]" >"$work/archive/manifest.json"
  tar -C "$work/archive" -cf "$work/file" .
  mv "$work/file" "$file"
}

# The shell and the commands are for a restore.
etcd() {
  begin
  mkdir -p "$root/var/lib/etcd"
  copy_programs /usr/bin etcd etcdctl sh chown mkdir mv rm rmdir stat
  chown $USER_ID:$USER_ID "$root/var/lib/etcd"
  finish "$1" $USER_ID '["etcd", "--data-dir", "/var/lib/etcd"]'
}

# The kubelet runs mount and umount, and kube-proxy the names of iptables, which has its matches and targets as plugins.
kubernetes() {
  local component plugins
  begin
  cp "$2" "$root/usr/bin/kubernetes"
  for component in "${COMPONENTS[@]}"; do ln -s kubernetes "$root/usr/bin/$component"; done
  copy_programs /usr/bin mount umount
  copy_programs /usr/sbin xtables-nft-multi
  for component in {iptables,ip6tables}{,-save,-restore}; do ln -s ../sbin/xtables-nft-multi "$root/usr/bin/$component"; done
  for plugins in /usr/lib/*/xtables; do
    cp --parents -rL "$plugins" "$root"
    copy_libraries "$plugins"/*.so
  done
  finish "$1" 0 null
}

pods() {
  local programs=$1
  begin
  cp "$programs/pause" "$root/usr/bin/"
  finish madako-lab/pause:1 $USER_ID '["pause"]'

  # The shell is for the hook that the deployment names.
  begin
  cp "$programs/coredns" "$root/usr/bin/"
  copy_programs /usr/bin sh sleep
  finish madako-lab/coredns:1 $USER_ID '["coredns"]'

  begin
  copy_programs /usr/sbin unbound unbound-control
  copy_programs /usr/bin sh sleep cksum
  mkdir -p "$root/usr/local/"{bin,unbound/etc/unbound}
  cp /usr/share/dns/root.hints /usr/share/dns/root.key "$root/usr/local/unbound/etc/unbound/"
  cat >"$root/usr/local/bin/reload-unbound" <<'END'
#!/usr/bin/sh
# Tells unbound to read its configuration again when the file has changed.
file=/etc/unbound/unbound.conf
before=$(cksum <$file)
while sleep 2; do
  now=$(cksum <$file)
  [ "$now" = "$before" ] || ! unbound-control -c $file reload || before=$now
done
END
  chmod 755 "$root/usr/local/bin/reload-unbound"
  # As root, without which the capability for port 53 has no effect.
  finish madako-lab/unbound:1 0 '["unbound"]'

  begin
  cp "$programs/unbound_exporter" "$root/usr/bin/"
  finish madako-lab/unbound_exporter:1 0 '["unbound_exporter"]'

  begin
  cp "$programs/echo" "$root/usr/bin/"
  finish madako-lab/echo:1 $USER_ID '["echo"]'
}

# --- Parts -----------------------------------------------------------------------------------------------------------

# Starts an image with the directories that every program may expect.
begin() {
  root=$work/root
  mkdir -p "$root"/{usr/bin,usr/sbin,etc,tmp}
  chmod 755 "$root"
  chmod 1777 "$root/tmp"
  echo "root:x:0:0::/:/
user:x:$USER_ID:$USER_ID::/:/" >"$root/etc/passwd"
  echo "root:x:0:
user:x:$USER_ID:" >"$root/etc/group"
  chown -R 0:0 "$root"
}

# Copies programs of a directory to the image's directory of the same name.
copy_programs() {
  local from=$1 program
  shift
  for program in "$@"; do
    cp -L "$from/$program" "$root$from/"
    copy_libraries "$from/$program"
  done
}

# The loader has no arrow in the output of ldd.
copy_libraries() {
  local library
  ldd "$@" | sed 's/:$//' | grep -o '[ 	]/[^ ]*' | sort -u | while read -r library; do
    [ -e "$root$library" ] || cp --parents -L "$library" "$root"
  done
}

# Writes the image that begin started, with one layer.
finish() {
  local name=$1 user=$2 entrypoint=$3 layer config
  tar --numeric-owner -C "$root" -cf "$work/layer" .
  layer=$(sha256sum "$work/layer" | cut -d' ' -f1)
  mv "$work/layer" "$work/archive/$layer.tar"
  rm -rf "$root"
  cat >"$work/config" <<END
{"architecture": "$(dpkg --print-architecture)", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]},
 "config": {"User": "$user:$user", "Env": ["PATH=/usr/local/bin:/usr/bin:/usr/sbin"], "Entrypoint": $entrypoint}}
END
  config=$(sha256sum "$work/config" | cut -d' ' -f1)
  mv "$work/config" "$work/archive/$config.json"
  manifest+=${manifest:+, }"{\"Config\": \"$config.json\", \"RepoTags\": [\"$name\"], \"Layers\": [\"$layer.tar\"]}"
}

main "$@"
