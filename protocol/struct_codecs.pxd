from protocol.field_codecs cimport DefaultValue, FieldCodec, Reader

cimport cython


cdef class Array(FieldCodec):
    cdef FieldCodec _element
    cdef str _integer
    cdef bint _is_flexible
    cdef bint _is_nullable

    @cython.locals(at=Py_ssize_t, count=Py_ssize_t, element=FieldCodec, elements=list)
    cdef read(self, Reader reader)
    @cython.locals(count=Py_ssize_t, element=FieldCodec)
    cdef write(self, value, list pieces)


@cython.final
cdef class TaggedFields:
    cdef dict _fields
    cdef dict _numbers

    @cython.locals(
        codec=FieldCodec, count=Py_ssize_t, end=Py_ssize_t, field=tuple, left=Py_ssize_t, size=Py_ssize_t,
        tag=Py_ssize_t,
    )
    cdef read(self, Reader reader, list values)
    @cython.locals(codec=FieldCodec, count=Py_ssize_t, sections=list, size=Py_ssize_t, written=list)
    cdef write(self, tuple values, list pieces)


cdef class StructCodec(FieldCodec):
    cdef bint _is_flexible
    cdef object _make
    cdef tuple _missing
    cdef str _name
    cdef FieldCodec _only
    cdef tuple _parts
    cdef TaggedFields _tagged
    cdef tuple _written

    @cython.locals(part=FieldCodec, values=list)
    cdef read(self, Reader reader)
    @cython.locals(part=FieldCodec, values=tuple)
    cdef write(self, value, list pieces)
    cdef _reject_unsupported_fields(self, tuple values)


@cython.final
cdef class MessageCodec:
    cdef dict _codecs
    cdef str _name
    cdef object _record_version

    @cython.locals(codec=StructCodec)
    cpdef bytes encode(self, message, version)
    cdef _decode_to_end(self, Reader reader, version)
    @cython.locals(codec=StructCodec)
    cdef _decode(self, Reader reader, version)
