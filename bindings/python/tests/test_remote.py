"""Memory of another node: two services with a link each, on this machine."""

import os
import pickle
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import memferry
import numpy
from support import LEASHED, PATIENCE, SERVICE, Bounded, noise

LINK = Path(SERVICE).with_name("memferry-link") if SERVICE else None


@unittest.skipUnless(LINK and LINK.exists(), "there is no memferry-link beside the command of MEMFERRY_TEST_COMMAND")
class Remote(Bounded):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        names = ("alpha", "beta")
        keys = {name: self.output(LINK, "keygen", self.directory / f"{name}.key") for name in names}
        # An address of the loopback interface that no other test has.
        addresses = {name: f"127.{2 + os.getpid() // 250 % 250}.{os.getpid() % 250}.7:{17501 + at}" for at, name in enumerate(names)}
        for name, peer in (names, names[::-1]):
            (self.directory / f"{name}.toml").write_text(
                f'name = "{name}"\nkey = "{name}.key"\nlisten = "{addresses[name]}"\ntimeout-ms = 3000\n'
                f'[peers.{peer}]\nkey = "{keys[peer]}"\naddress = "{addresses[peer]}"\nrequire-encryption = true\n'
            )
            engine = f"link user={os.geteuid()} frames=all stall-ms=10000"
            service = self.start(SERVICE, "serve", "--socket", self.socket(name), "--no-config", "--engine", engine)
            self.assertIn("listening", service.stdout.readline())
            self.start(LINK, "run", "--socket", self.socket(name), "--config", self.directory / f"{name}.toml")

    def socket(self, name):
        return self.directory / f"{name}.sock"

    def output(self, *command):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout.strip()

    def start(self, *command):
        leashed = [sys.executable, "-I", "-S", "-c", LEASHED, *map(str, command)]
        quiet = os.environ | {"MEMFERRY_LOG": "off"}
        process = subprocess.Popen(leashed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet)

        def end():
            process.kill()
            process.wait()
            process.stdout.close()

        self.addCleanup(end)
        return process

    def until(self, call, *patient):
        """The result of a call that fails in one of these ways at first: links connect by themselves."""
        since = time.monotonic()
        while True:
            try:
                return call()
            except patient:
                if time.monotonic() - since > PATIENCE:
                    raise
                time.sleep(0.01)

    def test_memory_of_another_node_is_an_operand_until_it_is_revoked(self):
        with memferry.connect(self.socket("alpha")) as owner, memferry.connect(self.socket("beta")) as user:
            theirs = owner.frame(1 << 20)
            numpy.frombuffer(theirs, numpy.uint8)[:] = noise(1 << 20)
            grant = owner.grant(theirs[:4096], "rw", user=os.geteuid(), node="beta", lasts=3600)
            token = grant.remote_token("alpha")
            self.assertEqual((token.node, token.length), ("alpha", 4096))
            for copied in (memferry.RemoteToken(str(token)), pickle.loads(pickle.dumps(token))):
                self.assertEqual((copied, hash(copied)), (token, hash(token)))
            remote = self.until(lambda: user.accept_remote(token), memferry.RefusedError)
            self.assertEqual((len(remote), remote.rights, remote.mapped, remote.grantor), (4096, "rw", False, None))
            queue = user.queue(4)

            def read():
                # The link may be late for a frame on a busy machine.
                own = user.frame(4096)
                queue.run(memferry.copy(remote, own))
                return own

            own = self.until(read, memferry.TransferError)
            numpy.testing.assert_array_equal(numpy.frombuffer(own, numpy.uint8), numpy.frombuffer(theirs, numpy.uint8)[:4096])
            memoryview(own)[:5] = b"there"
            queue.run(memferry.copy(own, remote))
            self.assertEqual(bytes(memoryview(theirs)[:5]), b"there")
            with self.assertRaises(memferry.TransferError) as refused:
                queue.run(memferry.copy(of_another(user, owner, theirs), own))
            self.assertEqual(refused.exception.failure, "PeerRefused")
            grant.revoke()
            with self.assertRaises(memferry.TransferError) as refused:
                queue.run(memferry.copy(remote, own))
            self.assertEqual(refused.exception.failure, "PeerRefused")
            with self.assertRaisesRegex(memferry.RefusedError, "does not name this node"):
                user.accept_remote(memferry.RemoteToken(str(token).replace("alpha:", "nobody:")))


def of_another(user, owner, frame):
    """A frame of another node that was granted to another user."""
    grant = owner.grant(frame[:4096], "r", user=(os.geteuid() + 1) % (1 << 32), node="beta")
    return user.accept_remote(grant.remote_token("alpha"))
