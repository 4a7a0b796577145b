//! NBD under TLS, with the clients of others: libnbd and QEMU (GnuTLS). Certificates are made here, by `openssl`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tests::{Finished, Process, World, finish, tool};

/// `NBD_OPT_STARTTLS`, after the client's flags.
const STARTTLS: &[u8] = b"\0\0\0\x01IHAVEOPT\0\0\0\x05\0\0\0\0";
/// `NBD_OPT_LIST`, after the client's flags.
const LIST: &[u8] = b"\0\0\0\x01IHAVEOPT\0\0\0\x03\0\0\0\0";

/// An authority with a server and a client, in a folder that libnbd and QEMU take.
struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    fn make(world: &World, name: &str) -> Self {
        let folder = world.path(name);
        std::fs::create_dir(&folder).unwrap();
        let made = Self { folder };
        let subject = format!("/CN={name} authority");
        made.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            &subject,
            "-addext",
            "keyUsage=critical,keyCertSign",
            "-keyout",
            "ca-key.pem",
            "-out",
            "ca-cert.pem",
        ]);
        let extensions = "subjectAltName=DNS:localhost,IP:127.0.0.1\nkeyUsage=digitalSignature\n\
                          extendedKeyUsage=serverAuth,clientAuth\n";
        std::fs::write(made.folder.join("extensions"), extensions).unwrap();
        for whom in ["server", "client"] {
            let (key, request, certificate) =
                (format!("{whom}-key.pem"), format!("{whom}.csr"), format!("{whom}-cert.pem"));
            made.openssl(&[
                "req",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-subj",
                &format!("/CN={whom}"),
                "-keyout",
                &key,
                "-out",
                &request,
            ]);
            made.openssl(&[
                "x509",
                "-req",
                "-in",
                &request,
                "-CA",
                "ca-cert.pem",
                "-CAkey",
                "ca-key.pem",
                "-CAcreateserial",
                "-days",
                "2",
                "-extfile",
                "extensions",
                "-out",
                &certificate,
            ]);
        }
        made
    }

    fn openssl(&self, arguments: &[&str]) {
        finish(Command::new("openssl").args(arguments).current_dir(&self.folder)).success();
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// An attachment `disk` with TLS of this server, for clients of `authority`.
    fn attach(&self, world: &World, url: &str, others: &[&str]) -> Process {
        let certificate = format!("nbd.tls-certificate={}", self.path("server-cert.pem"));
        let key = format!("nbd.tls-key={}", self.path("server-key.pem"));
        let clients = format!("nbd.tls-clients={}", self.path("ca-cert.pem"));
        let fixed = ["attach", url, "--name", "disk", "--as", "nbd:127.0.0.1:0", "--set", &certificate, "--set", &key];
        world.start([&fixed[..], &["--set", &clients], others].concat())
    }

    /// `qemu-io` with the client's certificate.
    fn qemu_io(&self, port: &str, command: &str) -> Finished {
        let folder = self.folder.display();
        finish(Command::new("qemu-io").args([
            "--object",
            &format!("tls-creds-x509,id=tls,endpoint=client,dir={folder}"),
            "--image-opts",
            &format!("driver=nbd,host=localhost,port={port},tls-creds=tls"),
            "-c",
            command,
        ]))
    }

    /// `nbdinfo` with the client's certificate.
    fn nbdinfo(&self, port: &str) -> Finished {
        let folder = self.folder.display();
        finish(Command::new("nbdinfo").args(["--size", &format!("nbds://localhost:{port}/?tls-certificates={folder}")]))
    }
}

/// The port in the address of an attachment.
fn port_of(disk: &Process) -> String {
    let address = disk.ready.split_once("://").expect("it is a URI").1;
    address.trim_end_matches('/').rsplit_once(':').expect("it has a port").1.to_owned()
}

fn connect(port: &str) -> TcpStream {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream
}

/// The type of the next reply to an option, without data.
fn reply(stream: &mut TcpStream) -> u32 {
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    u32::from_be_bytes(reply[12..16].try_into().unwrap())
}

#[test]
fn libnbd_and_qemu_reach_the_disk_under_tls_and_nobody_does_without() {
    let world = World::new();
    let (ours, others) = (Certificates::make(&world, "ours"), Certificates::make(&world, "others"));
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let disk = ours.attach(&world, &target.url(0), &[]);
    assert!(disk.ready.starts_with("nbds://127.0.0.1:"), "{}", disk.ready);
    let port = port_of(&disk);
    assert_eq!(ours.nbdinfo(&port).success().trim(), (16 << 20).to_string());
    ours.qemu_io(&port, "write -P 7 0 8M").success();
    ours.qemu_io(&port, "read -P 7 0 8M").success();
    let plain =
        finish(Command::new("qemu-io").args(["-f", "raw", "-c", "read 0 4k", &format!("nbd://localhost:{port}")]));
    assert_ne!(plain.code, Some(0), "{plain:?}");
    assert!(plain.stderr.to_lowercase().contains("tls"), "it is told why: {}", plain.stderr);
    // Of another authority: neither end takes it.
    assert_ne!(others.nbdinfo(&port).code, Some(0));
    assert_ne!(others.qemu_io(&port, "read 0 4k").code, Some(0));
    // Who trusts us, and is nobody we know.
    std::fs::copy(ours.path("ca-cert.pem"), others.path("ca-cert.pem")).unwrap();
    assert_ne!(others.qemu_io(&port, "read -P 7 0 4k").code, Some(0));
    ours.qemu_io(&port, "read -P 7 0 8M").success();
}

#[test]
fn where_tls_is_allowed_clients_without_it_are_served_too() {
    let world = World::new();
    let ours = Certificates::make(&world, "ours");
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let disk = ours.attach(&world, &target.url(0), &["--set", "nbd.tls=allowed"]);
    let port = port_of(&disk);
    ours.qemu_io(&port, "write -P 8 0 64k").success();
    tool("qemu-io", ["-f", "raw", "-c", "read -P 8 0 64k", &disk.ready]);
}

/// Whoever asks for TLS and then says nothing, or nonsense, is hung up on; others are served meanwhile.
#[test]
fn slow_and_wrong_handshakes_end_and_disturb_nobody() {
    let world = World::new();
    let ours = Certificates::make(&world, "ours");
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let disk = ours.attach(&world, &target.url(0), &[]);
    let port = port_of(&disk);
    let mut silent: Vec<TcpStream> = (0..150).map(|_| connect(&port)).collect();
    for stream in &mut silent {
        // Of more than there are places for the oldest are hung up on.
        let _ = stream.write_all(STARTTLS);
    }
    let newest = silent.last_mut().unwrap();
    assert_eq!(reply(newest), 1, "NBD_REP_ACK");
    let mut wrong = connect(&port);
    wrong.write_all(STARTTLS).unwrap();
    assert_eq!(reply(&mut wrong), 1);
    wrong.write_all(&[b'x'; 64]).unwrap();
    let mut alert = Vec::new();
    wrong.read_to_end(&mut alert).unwrap();
    assert_eq!(alert.first(), Some(&21), "a TLS alert, then the end: {alert:?}");
    let mut plain = connect(&port);
    plain.write_all(LIST).unwrap();
    assert_eq!(reply(&mut plain), (1 << 31) + 5, "NBD_REP_ERR_TLS_REQD");
    ours.qemu_io(&port, "write -P 9 0 64k").success();
    // It takes as long as any handshake may, and no longer.
    let mut rest = Vec::new();
    silent.last_mut().unwrap().read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
    ours.qemu_io(&port, "read -P 9 0 64k").success();
}

#[test]
fn certificates_that_are_none_and_addresses_without_them_are_refused() {
    let world = World::new();
    let ours = Certificates::make(&world, "ours");
    let target = world.target(["--lun", "0=ram:16MiB"]);
    let attach = |others: &[&str]| world.run([&["attach", &target.url(0), "--name", "disk"], others].concat());
    let set = |key: &str, file: &str| format!("{key}={}", ours.path(file));
    let (certificate, key, clients) = (
        set("nbd.tls-certificate", "server-cert.pem"),
        set("nbd.tls-key", "server-key.pem"),
        set("nbd.tls-clients", "ca-cert.pem"),
    );
    let tcp = ["--as", "nbd:127.0.0.1:0"];
    attach(&[&tcp[..], &["--set", &certificate]].concat()).failure(2, &["nbd.tls-key"]);
    let other_key = set("nbd.tls-key", "client-key.pem");
    attach(&[&tcp[..], &["--set", &certificate, "--set", &other_key]].concat()).failure(2, &["server-cert.pem"]);
    let no_key = set("nbd.tls-key", "extensions");
    attach(&[&tcp[..], &["--set", &certificate, "--set", &no_key]].concat()).failure(2, &["extensions", "private key"]);
    let nowhere = set("nbd.tls-key", "nowhere");
    attach(&[&tcp[..], &["--set", &certificate, "--set", &nowhere]].concat()).failure(5, &["nowhere"]);
    let remote = ["--as", "nbd:0.0.0.0:0", "--set", "allow-remote=on"];
    attach(&remote).failure(2, &["0.0.0.0:0", "nbd.tls-clients"]);
    attach(&[&remote[..], &["--set", &certificate, "--set", &key]].concat()).failure(2, &["nbd.tls-clients"]);
    let unsaid = ["--as", "nbd:0.0.0.0:0", "--set", &certificate, "--set", &key, "--set", &clients];
    attach(&unsaid).failure(2, &["allow-remote=on"]);
}
