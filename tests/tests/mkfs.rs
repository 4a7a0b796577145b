//! `forebay mkfs`: an ext2 on a LUN, which e2fsck finds clean; not where something is, unless that is meant.

use tests::{World, tool};

#[test]
fn a_new_ext2_on_a_lun_is_clean() {
    let world = World::new();
    let file = world.path("lun.img");
    let target = world.target(["--lun", &format!("0=file:{},size=64MiB", file.display())]);
    let url = target.url(0);
    let text = world.run(["mkfs", &url, "--label", "data"]).success();
    assert!(text.contains("65536 blocks of 1024 bytes"), "{text}");
    tool("/usr/sbin/e2fsck", ["-fn".as_ref(), file.as_os_str()]);
    assert!(tool("/usr/sbin/dumpe2fs", ["-h".as_ref(), file.as_os_str()]).contains("data"));

    world.run(["mkfs", &url]).failure(9, &["not empty", "--allow-data-loss"]);
    world.run(["mkfs", &url, "--allow-data-loss", "--block-size", "8KiB"]).failure(2, &["4096"]);
    let made = world.run(["mkfs", &url, "--allow-data-loss", "--block-size", "4KiB", "--json"]).json();
    assert_eq!((made["block_bytes"].as_u64(), made["blocks"].as_u64()), (Some(4096), Some(16384)));
    tool("/usr/sbin/e2fsck", ["-fn".as_ref(), file.as_os_str()]);
}
