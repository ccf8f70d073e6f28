import os

import crc32c as _c


def crc32c(d, value=0): return _c.crc32c(memoryview(d).cast('B') if memoryview(d).nbytes else b'', value)
def write_blocks(fd, pieces, *, block_bytes=1<<20, threads=1, path=""):
    out=[]
    for b,o in pieces:
        m=memoryview(b)
        m=m.cast('B') if m.nbytes else memoryview(b'')
        cs=[]
        for s in range(0,len(m),block_bytes):
            x=m[s:s+block_bytes]; cs.append(_c.crc32c(x)); os.pwrite(fd,x,o+s)
        out.append(cs)
    return out
def read_blocks(fd, pieces, *, block_bytes=1<<20, threads=1, path=""):
    bad=[]
    for i,(b,o,cr) in enumerate(pieces):
        m=memoryview(b)
        m=m.cast('B') if m.nbytes else memoryview(bytearray())
        for k,s in enumerate(range(0,len(m),block_bytes)):
            x=m[s:s+block_bytes]; n=os.preadv(fd,[x],o+s)
            if n<len(x): raise EOFError(path)
            if cr is not None and _c.crc32c(x)!=cr[k]: bad.append((i,k))
    return bad
def fsync(fd,path=""): os.fsync(fd)
def fsync_dir(path):
    fd=os.open(path,os.O_RDONLY); os.fsync(fd); os.close(fd)
def preallocate(fd,n,path=""): os.posix_fallocate(fd,0,n) if n else None
