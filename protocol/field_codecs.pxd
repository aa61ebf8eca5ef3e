cimport cython


@cython.final
cdef class Reader:
    cdef bytes buf
    cdef Py_ssize_t at
    cdef Py_ssize_t left

    @cython.locals(count=Py_ssize_t)
    cdef Py_ssize_t read_count(self) except -1
    cdef int spend_budget(self, Py_ssize_t count) except -1
    @cython.locals(count=Py_ssize_t, size=Py_ssize_t)
    cdef int skip_tags(self) except -1


cdef class FieldCodec:
    cdef public Py_ssize_t first
    cdef public Py_ssize_t last
    cdef readonly bint is_run

    cdef read(self, Reader reader)
    cdef write(self, value, list pieces)


cdef class FixedFields(FieldCodec):
    cdef object _pack
    cdef Py_ssize_t _size
    cdef object _unpack
    cdef tuple _uuids

    cdef read(self, Reader reader)
    cdef write(self, value, list pieces)


cdef class DefaultValue(FieldCodec):
    cdef object _default

    cdef read(self, Reader reader)


cdef class CompactText(FieldCodec):
    cdef bint _is_nullable
    cdef bint _is_string

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t)
    cdef read(self, Reader reader)
    @cython.locals(size=Py_ssize_t)
    cdef write(self, value, list pieces)


cdef class LegacyText(FieldCodec):
    cdef bint _is_nullable
    cdef bint _is_string
    cdef object _length

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t)
    cdef read(self, Reader reader)
    cdef write(self, value, list pieces)


cdef class StateBatches(FieldCodec):
    @cython.locals(at=Py_ssize_t, buf=bytes, count=Py_ssize_t, end=Py_ssize_t, pieces=list)
    cdef read(self, Reader reader)
    @cython.locals(count=Py_ssize_t)
    cdef write(self, value, list pieces)
