from coordinator.fastpath.commit_batch cimport CommitContext, CommitBatch


cdef class QueuedOperation:
    cdef public bint writes

    cpdef answer_decided(self)


cdef class WriteDecider:
    cpdef decide_writes(self, shard, CommitBatch batch, list waiting)


cdef class OperationQueue:
    cpdef submit(self, QueuedOperation operation)
    cpdef bytes state_to_read(self, key)
    cpdef process_batch(self, CommitContext commit)
    cpdef batch_failed(self, failure)
    cpdef on_append_done(self, base_offset, error)
