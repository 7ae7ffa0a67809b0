//! Refuses the system calls that lead out of a worker: other programs, the network, other processes, the kernel's own.
//! A list of what is refused and not of what is allowed: what the driver of a GPU calls changes with its version.

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter, sock_filter,
};
use std::collections::BTreeMap;

/// What the kernel answers to a call that is refused, as it does to one without permission.
const REFUSED: SeccompAction = SeccompAction::Errno(libc::EPERM as u32);

/// Refused whatever the arguments are.
const ALWAYS: &[libc::c_long] = &[
    // Other programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Connections. Binding and listening stay allowed: the driver fails to start without its own socket.
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Calls that are made by the kernel, past this list.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Owners and rights of files, which Landlock does not guard.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    // Files past their paths, devices, mounts and namespaces.
    libc::SYS_open_by_handle_at,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// The same number on every processor; the bindings do not have it everywhere.
const FCHMODAT2: libc::c_long = 452;
/// Types into a terminal, and into the console. The bindings have other types for them on other systems.
const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
/// The bits of a socket's type that are not flags.
const TYPE_MASK: u64 = 0xf;

/// Puts the list in force for the calling thread and for what it starts; or says why it is not.
pub(super) fn limit() -> Result<(), String> {
    let program = program().map_err(|error| format!("seccomp: {error}"))?;
    apply_filter(&program).map_err(|error| format!("seccomp: {error}"))
}

fn program() -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALWAYS.iter().map(|&call| (call, Vec::new())).collect();
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        rules.insert(call, foreign_sockets()?);
    }
    // A terminal that was inherited could be typed into.
    rules.insert(libc::SYS_ioctl, vec![is(1, TIOCSTI)?, is(1, TIOCLINUX)?]);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, REFUSED, std::env::consts::ARCH.try_into()?)?;
    Ok(without_x32(filter.try_into()?))
}

/// Sockets of the network, and those that reach another's without a connection.
fn foreign_sockets() -> Result<Vec<SeccompRule>, BackendError> {
    let family = SeccompCondition::new(0, Dword, SeccompCmpOp::Ne, libc::AF_UNIX as u64)?;
    let kind = SeccompCondition::new(1, Dword, SeccompCmpOp::MaskedEq(TYPE_MASK), libc::SOCK_DGRAM as u64)?;
    Ok(vec![SeccompRule::new(vec![family])?, SeccompRule::new(vec![kind])?])
}

fn is(argument: u8, value: u64) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(argument, Dword, SeccompCmpOp::Eq, value)?])
}

/// Refuses calls of the x32 ABI, which has numbers of its own for the same calls.
///
/// The filter's own check of the architecture lets them pass: they have that of x86-64.
fn without_x32(filter: BpfProgram) -> BpfProgram {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const CALL_NUMBER: u32 = 0;
    const X32: u32 = 0x4000_0000;
    if !cfg!(target_arch = "x86_64") {
        return filter;
    }
    let mut program = vec![
        sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: CALL_NUMBER },
        sock_filter { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: X32 },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: REFUSED.into() },
    ];
    program.extend(filter);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind::PermissionDenied, Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
    use std::process::Command;

    /// seccomp holds for a thread: this one ends with the test.
    fn limited(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| limit().map(|()| test()));
        if let Err(why) = thread.join().unwrap() {
            magray_skip::test(magray_skip::Need::Seccomp, why);
        }
    }

    #[test]
    fn no_program_is_run_and_no_other_socket_reached() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, file) = (dir.path().join("socket"), dir.path().join("file"));
        let _listening = UnixListener::bind(&socket).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::fs::write(&file, b"").unwrap();
        limited(move || {
            let is_refused = |error: std::io::Error| assert_eq!(error.kind(), PermissionDenied, "{error}");
            is_refused(Command::new("/bin/true").spawn().map(|_| ()).unwrap_err());
            is_refused(TcpStream::connect(address).map(|_| ()).unwrap_err());
            is_refused(TcpListener::bind("127.0.0.1:0").map(|_| ()).unwrap_err());
            is_refused(UdpSocket::bind("127.0.0.1:0").map(|_| ()).unwrap_err());
            is_refused(UnixStream::connect(&socket).map(|_| ()).unwrap_err());
            is_refused(UnixDatagram::unbound().map(|_| ()).unwrap_err());
            is_refused(UnixDatagram::pair().map(|_| ()).unwrap_err());
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            is_refused(std::fs::set_permissions(&file, mode).unwrap_err());
        });
    }

    #[test]
    fn pairs_of_sockets_threads_and_files_still_work() {
        limited(|| {
            let (mut here, mut there) = UnixStream::pair().unwrap();
            here.write_all(b"x").unwrap();
            let mut byte = [0];
            std::thread::spawn(move || there.read_exact(&mut byte).map(|()| byte)).join().unwrap().unwrap();
            // As the driver does for processes that share memory with it.
            let name = format!("magray-test-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(name).unwrap();
            UnixListener::bind_addr(&address).unwrap();
            assert!(tempfile::tempfile().unwrap().write_all(b"x").is_ok());
        });
    }
}
