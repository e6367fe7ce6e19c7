"""PyTorch on a frame in memory of a GPU: the same bytes for memferry's transfers and for tensors, without a copy between them.

    python torch_frame.py [SOCKET [HOME]]

It needs a service with the CUDA engine, called cuda-0 if HOME does not say otherwise and with exports=all, a GPU that this process sees, and PyTorch; with CuPy
it looks at the frame by that, too. Each step compares bytes, and the first difference ends it with status 1.
"""

import sys

import memferry
import numpy
import torch

LENGTH = (8 << 20) + 3


def check(what, one, other):
    if not numpy.array_equal(one, other):
        sys.exit(f"{what}: WRONG")
    print(f"{what}: right")


def moved(client, queue, make):
    """Runs a transfer between a frame of the host and the GPU's memory, again if the engine had not mapped the host's frame in time."""
    for _ in range(100):
        near = client.frame(LENGTH)
        view = numpy.frombuffer(near, numpy.uint8)[:LENGTH]
        try:
            queue.run(make(near[:LENGTH], view))
            return view.copy()
        except memferry.TransferError as error:
            if error.failure != "Unsupported":
                raise
    sys.exit("the engine maps no frame in memory of the host")


def main(path="/run/memferry.sock", home="cuda-0"):
    random = numpy.random.default_rng(27)
    first, second = (random.integers(0, 256, LENGTH, numpy.uint8) for _ in range(2))
    with memferry.connect(path) as client, client.queue(8) as queue:
        frame = client.frame(LENGTH, home=home)

        def put(near, view):
            view[:] = first
            return memferry.copy(near, frame)

        moved(client, queue, put)
        tensor = torch.from_dlpack(frame)
        print(f"{tensor.shape[0]} bytes, {tensor.dtype}, on {tensor.device}, {torch.cuda.get_device_name(tensor.device)}")
        check("a transfer's bytes in a tensor", tensor.cpu().numpy(), first)

        pointer = frame.__cuda_array_interface__["data"][0]
        other = torch.as_tensor(frame, device=tensor.device)
        check("the address by each way", [tensor.data_ptr(), other.data_ptr()], [pointer, pointer])

        tensor.copy_(torch.from_numpy(second))
        other.bitwise_xor_(0x5A)
        torch.cuda.synchronize()
        check("a tensor's bytes by a transfer", moved(client, queue, lambda near, _: memferry.copy(frame, near)), second ^ 0x5A)

        moved(client, queue, lambda near, _: memferry.fill(frame, 0x17))
        check("a fill by the engine in a tensor", tensor.cpu().numpy(), numpy.full(LENGTH, 0x17, numpy.uint8))

        try:
            import cupy
        except ImportError:
            print("left out: CuPy is not installed")
        else:
            array = cupy.asarray(frame)
            array += 1
            cupy.cuda.get_current_stream().synchronize()
            check("CuPy's bytes in a tensor", tensor.cpu().numpy(), numpy.full(LENGTH, 0x18, numpy.uint8))
            del array

        tensor.copy_(torch.from_numpy(first))
        torch.cuda.synchronize()
        del frame, other
        # Zeroed memory for others, of which the tensor's is none.
        others = [client.frame(LENGTH, home=home) for _ in range(4)]
        check("a tensor whose frame is released", tensor.cpu().numpy(), first)
        del others, tensor
        torch.cuda.synchronize()
    print("all bytes are right")


main(*sys.argv[1:])
