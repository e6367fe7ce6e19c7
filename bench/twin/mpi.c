/*
 * What the benchmark of UCX in Debian 13 needs of MPI to start. It begins by itself, not by an MPI launcher, so the first function says that
 * there is no MPI, and the others are not called. The library and all that it needs would be some hundred megabytes.
 */
char ompi_mpi_int[512], ompi_mpi_byte[512], ompi_mpi_comm_world[512];

#define ABSENT(name) \
    int name(void); \
    int name(void) { \
        return 1; \
    }

ABSENT(MPI_Init_thread)
ABSENT(MPI_Buffer_attach)
ABSENT(MPI_Buffer_detach)
ABSENT(MPI_Send)
ABSENT(MPI_Bsend)
ABSENT(MPI_Recv)
ABSENT(MPI_Irecv)
ABSENT(MPI_Testall)
ABSENT(MPI_Get_count)
ABSENT(MPI_Comm_size)
ABSENT(MPI_Comm_rank)
ABSENT(MPI_Finalize)
