"""Follows pages word by word: runs the commands of their console blocks and compares what they print with what the page shows.

    each block of a page ─► console: its commands and the output that the page shows │ C, Python: a file, that later commands use
        ─► "pages: N passed, M failed"

follow.py PAGE...                  in a fresh system with the packages, as root (packaging/tests/pages)
follow.py --tree TREE MEMFERRY LIBRARIES PAGE...
                                   with the program and the folder of libraries built in the working tree, as an ordinary user, with a
                                   private socket (tests/two-process/pages.rs)

A block behind `<!-- not run: REASON -->` is left out. Commands of the working tree (`./x`) are replaced by what the packages install, and
each replacement is printed. So is what depends on the machine. Rust blocks are tests of the crate memferry.
"""
import os, re, shutil, signal, socket, subprocess, sys, tempfile, time

# What a page names, and what is run instead; None: nothing.
REPLACED = {
    "./x demo": "memferry demo",
    "./x test": None,
    "./x advise": "memferry advise --help",
    "target/release/memferry profile -- PROGRAM": "memferry profile -- /bin/ls",
    "target/release/memferry profile -- PROGRAM ARGUMENTS": "memferry profile -- /bin/ls",
    # On a machine that is not quiet it would write nothing and fail.
    "memferry tune": "memferry tune --dry-run",
    "export PKG_CONFIG_PATH=$PWD/target/c/lib/pkgconfig": None,
}
# The same in the tree: not what takes long, and the C library is not installed.
REPLACED_IN_TREE = {
    "memferry tune": "memferry tune --help",
    "cc example.c $(pkg-config --cflags --libs memferry) -Wl,-rpath,$PWD/target/c/lib && ./a.out":
        "cc -Wall -Werror -fsyntax-only -I $TREE/bindings/c example.c",
    "cargo build --release -p memferry-preload": None,
    "cargo build --release -p memferry-cli -p memferry-recorder": None,
}
# Commands that run until they are stopped. True: later ones use them; False: a signal after the first output is how a reader stops them.
ENDLESS = {
    "memferry serve": True,
    "memferry 9p serve": False,
    "memferry status --watch": False,
    "memferry dashboard": False,
    "memferry metrics --listen": True,
}
# Words that stand for a reader's own file or program.
OWN = {"DIRECTORY": "served", "SOURCE DESTINATION": "a copied", "PROGRAM": "/bin/ls"}
FILES = {"c": "example.c", "python": "example.py"}
# Programs of others that a machine may lack.
OTHERS = {"cc", "curl"}
LIBRARIES = ["libmemferry_preload.so", "libmemferry_recorder.so"]
SOON = 30
# As nobody: root's service would have another socket.
USER = 65534
BLOCK = re.compile(r"^(<!-- not run: [^\n]*-->\n)?```([a-z]+)[^\n]*\n(.*?)^```$", re.M | re.S)

passed = failed = 0
running = []
tree = None
environment = {**os.environ, "LC_ALL": "C"}
literal = {}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def use_tree(root, program, libraries):
    """Sets up a folder like a working tree with built programs, of a user without rights if this is root."""
    global tree, literal
    tree = tempfile.mkdtemp(prefix="memferry-pages-")
    os.chmod(tree, 0o755)
    release = f"{tree}/target/release"
    os.makedirs(release)
    for built in [program] + [f"{libraries}/{library}" for library in LIBRARIES]:
        shutil.copy(built, release)
    environment.update(PATH=f"{release}:{environment['PATH']}", TREE=root, MEMFERRY_LOG="warn")
    literal = {"9464": free_port(), "9465": free_port()}
    literal["memferry dashboard"] = f"memferry dashboard --listen 127.0.0.1:{literal['9465']}"


def report(name, is_right, said=""):
    global passed, failed
    passed, failed = passed + is_right, failed + (not is_right)
    print("PASS" if is_right else "FAIL", name, flush=True)
    if not is_right:
        print(said[-1500:], flush=True)


def start(command, output):
    user = {"user": USER, "group": USER, "extra_groups": []} if tree and os.getuid() == 0 else {}
    return subprocess.Popen(["sh", "-c", command], stdout=output, stderr=subprocess.STDOUT, env=environment, **user)


def wait_for(process, is_there):
    deadline = time.monotonic() + SOON
    while process.poll() is None and time.monotonic() < deadline and not is_there():
        time.sleep(0.02)


def run(command, expected):
    shown = command
    command = re.split(r"\s+#\s", command)[0].strip()
    replaced = REPLACED | REPLACED_IN_TREE if tree else REPLACED
    if command in replaced:
        print(f"INFO `{command}` is replaced by `{replaced[command]}`", flush=True)
        command = replaced[command]
        if command is None:
            return
    if command.split()[0] in OTHERS and not shutil.which(command.split()[0]):
        print(f"INFO `{command}` is left out: that program is not installed", flush=True)
        return
    for word, own in (OWN | literal).items():
        command = re.sub(rf"(?<![\w$]){re.escape(word)}\b", lambda _: own, command)
    expected = [line.replace("/run/memferry.sock", literal.get("/run/memferry.sock", "/run/memferry.sock")) for line in expected]
    is_in_background = command.endswith("&")
    stays = next((stays for words, stays in ENDLESS.items() if command.startswith(words)), None)
    with tempfile.TemporaryFile("w+") as output:

        def said():
            output.seek(0)
            return output.read()

        is_right = lambda: all(line in said() for line in expected)
        if stays is None and not is_in_background:
            process = start(command, output)
            try:
                status = process.wait(300)
            except subprocess.TimeoutExpired:
                process.kill()
                status = "does not end"
            # A library that is not there is a warning only.
            is_right_end = status == 0 and is_right() and "cannot be preloaded" not in said()
            report(shown, is_right_end, f"{status}\n{said()}")
            return
        if command.startswith("memferry serve"):
            stop()
        process = start("exec " + command.rstrip("& "), output)
        wait_for(process, lambda: said() and is_right())
        is_alive = process.poll() is None and bool(said()) and is_right()
        running.append(process)
        if not stays and not is_in_background:
            running.remove(process)
            process.send_signal(signal.SIGINT)
            is_alive = is_alive and process.wait(SOON) in (0, 130, -signal.SIGINT)
        report(shown, is_alive, f"{process.poll()}\n{said()}")


def stop():
    while running:
        process = running.pop()
        process.terminate()
        process.wait(SOON)


def commands(block):
    """Each command of a console block, with the output that the page shows."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


def follow(page, text, folder):
    """Runs what a page shows, in a folder of its own."""
    os.makedirs(f"{folder}/served")
    with open(f"{folder}/a", "wb") as own:
        own.write(os.urandom(1 << 20))
    os.chdir(folder)
    if tree:
        os.symlink(f"{tree}/target", f"{folder}/target")
        environment.update(HOME=folder, XDG_RUNTIME_DIR=folder)
        environment.pop("MEMFERRY_PROFILE", None)
        literal["/run/memferry.sock"] = f"{folder}/memferry.sock"
        for path in [folder, f"{folder}/served", f"{folder}/a"] if os.getuid() == 0 else []:
            os.chown(path, USER, USER)
    print(f"INFO {page}", flush=True)
    blocks = [(language, lines) for mark, language, lines in BLOCK.findall(text) if not mark]
    if not any("$ memferry serve" in lines for _, lines in blocks) and any("$ memferry" in lines for _, lines in blocks):
        run("memferry serve", [])
    for language, lines in blocks:
        if language in FILES:
            with open(FILES[language], "w") as example:
                example.write(lines)
            if language == "python" and not tree:
                run("python3 example.py", ["True True"])
            elif language == "python":
                compile(lines, page, "exec")
        elif language == "console":
            for command, expected in commands(lines):
                run(command, expected)
    stop()


arguments = sys.argv[1:]
if arguments[0] == "--tree":
    use_tree(*map(os.path.abspath, arguments[1:4]))
    arguments = arguments[4:]
try:
    pages = [(page, open(page).read()) for page in arguments]
    for number, (page, text) in enumerate(pages):
        follow(page, text, f"{tree or '/tmp'}/{number}-{os.path.basename(page)}.d")
finally:
    stop()
    if tree:
        os.chdir("/")
        shutil.rmtree(tree, ignore_errors=True)
print(f"pages: {passed} passed, {failed} failed")
sys.exit(failed > 0)
